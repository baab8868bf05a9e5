//! Finds the beginning of a load in which the engine was slower, because it compiled graphs and kernels at first use
//! and the host's caches were cold. Prices are fitted to the rest.

use std::str::FromStr;

use vcr_base::units::duration_ns;

use crate::measurements::data::Measurements;
use crate::simulate::Simulation;

/// The part at the beginning of each load that a fit leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarmUp {
    /// Leaves out the first requests if they took clearly longer than the rest.
    #[default]
    Auto,
    /// Leaves out nothing.
    None,
    /// Leaves out the requests that arrived within this many nanoseconds.
    Until(u64),
}

impl FromStr for WarmUp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            text => duration_ns(text)
                .map(Self::Until)
                .map_err(|_| "expected auto, none or a duration such as 30s".to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Beginning {
    pub(crate) requests: usize,
    /// Time until the arrival of the last request of the warm-up.
    pub(crate) lasts_ns: u64,
    /// Measured duration of the warm-up's requests, relative to the prediction from the prices of the rest.
    pub(crate) slower: f64,
}

impl Beginning {
    pub(crate) fn text(&self, name: &str) -> String {
        format!(
            "{name}: the first {} requests ({:.1} s) are a warm-up and were not fitted: they took {:.1} times as long \
             as the rest says; `--warm-up none` keeps them",
            self.requests,
            self.lasts_ns as f64 / 1e9,
            self.slower
        )
    }
}

/// A warm-up can have at most this fraction of the requests, because the rest must be typical.
const MOST: f64 = 0.2;
/// The warm-up ends with a request whose time exceeds the typical time by this many deviations.
const DEVIATIONS: f64 = 3.0;
/// The request that ends the warm-up must also exceed the typical time by this much, as a logarithm.
const LEAST: f64 = 0.1;
/// Minimum fraction of slow requests in a warm-up.
const SLOW_SHARE: f64 = 0.8;
/// Fewer requests at the beginning may be slow by chance.
const MIN_REQUESTS: usize = 3;

/// Finds the warm-up of a load by comparing measured times with prices fitted to all requests.
pub(crate) fn find(measurements: &Measurements, simulation: &Simulation) -> Option<Beginning> {
    let ratio =
        |measured: Option<f64>, simulated: Option<f64>| Some((measured? / simulated.filter(|ns| *ns > 0.0)?).ln());
    let requests = measurements.requests().iter().zip(&simulation.requests).filter(|(measured, _)| measured.is_whole);
    let rows: Vec<(u64, Option<f64>)> = requests
        .map(|(measured, simulated)| {
            let decode_ns =
                |ttft: Option<u64>, e2e: Option<u64>| Some(e2e?.checked_sub(ttft?).filter(|ns| *ns > 0)? as f64);
            let decode =
                ratio(decode_ns(measured.ttft_ns, measured.e2e_ns), decode_ns(simulated.ttft_ns, simulated.e2e_ns));
            (measured.arrival_ns, decode.filter(|ratio| ratio.is_finite()))
        })
        .collect();
    beginning(&rows)
}

/// Finds the warm-up from the arrivals, in order, each with the logarithm of measured over simulated time.
fn beginning(rows: &[(u64, Option<f64>)]) -> Option<Beginning> {
    let first_ns = rows.first()?.0;
    let mut usual: Vec<f64> = rows[rows.len() / 2..].iter().filter_map(|(_, ratio)| *ratio).collect();
    let median = median(&mut usual)?;
    let mut distances: Vec<f64> = usual.iter().map(|ratio| (ratio - median).abs()).collect();
    let limit = median + (DEVIATIONS * self::median(&mut distances)? / 0.6745).max(LEAST);
    let (mut known, mut slow, mut sum) = (0usize, 0usize, 0.0);
    let mut found = None;
    for (index, (arrival_ns, ratio)) in rows.iter().enumerate().take((rows.len() as f64 * MOST) as usize) {
        let Some(ratio) = ratio else { continue };
        known += 1;
        sum += ratio - median;
        if *ratio <= limit {
            continue;
        }
        slow += 1;
        if slow >= MIN_REQUESTS && slow as f64 >= SLOW_SHARE * known as f64 {
            let slower = (sum / known as f64).exp();
            found = Some(Beginning { requests: index + 1, lasts_ns: arrival_ns - first_ns, slower });
        }
    }
    found
}

fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 200 requests, one per second; the `slow` ones took one and a half times as long.
    fn rows(slow: impl Fn(usize) -> bool) -> Vec<(u64, Option<f64>)> {
        let ratio = |index: usize| if slow(index) { 0.4 } else { 0.02 * (index % 5) as f64 };
        (0..200).map(|index| (index as u64 * 1_000, Some(ratio(index)))).collect()
    }

    #[test]
    fn slow_requests_at_the_beginning_are_a_warm_up() {
        let found = beginning(&rows(|index| index < 12 && index != 5)).expect("it is found");
        assert_eq!((found.requests, found.lasts_ns), (12, 11_000));
        assert!((found.slower - 1.4).abs() < 0.1, "{found:?}");
    }

    #[test]
    fn what_is_slow_now_and_then_or_by_chance_is_none() {
        assert_eq!(beginning(&rows(|_| false)), None);
        assert_eq!(beginning(&rows(|index| index % 3 == 0)), None, "all of the load is like that");
        assert_eq!(beginning(&rows(|index| index < 2)), None, "two requests are chance");
        assert_eq!(beginning(&rows(|index| (60..80).contains(&index))), None, "it is not at the beginning");
        assert_eq!(beginning(&[]), None);
    }

    #[test]
    fn options_are_words_or_durations() {
        let read = |text: &str| text.parse::<WarmUp>();
        assert_eq!(
            [read("auto"), read("none"), read("30s")],
            [Ok(WarmUp::Auto), Ok(WarmUp::None), Ok(WarmUp::Until(30_000_000_000))]
        );
        assert_eq!(read("soon"), Err("expected auto, none or a duration such as 30s".to_owned()));
    }
}
