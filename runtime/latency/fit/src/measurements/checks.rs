//! Plausibility checks of measurements.

use crate::error::FitError;
use crate::measurements::measured::Measured;

/// With fewer complete requests, no coefficient can be determined.
const MIN_REQUESTS: usize = 20;

/// More requests are refused, since they cost memory and time and give no more information.
pub(crate) const MAX_REQUESTS: usize = 1_000_000;

/// Checks the requests of a file, in order of arrival. `unused` lists columns with unknown names. Returns warnings.
///
/// # Errors
/// If there are too few requests, or their times contradict each other.
pub(crate) fn rows(name: &str, rows: &[&Measured], unused: &[&str]) -> Result<Vec<String>, FitError> {
    if rows.len() > MAX_REQUESTS {
        let what = format!("it has more than {MAX_REQUESTS} requests: fit a part of them");
        return Err(FitError::data(name, what));
    }
    let whole: Vec<&Measured> = rows.iter().copied().filter(|row| row.is_whole).collect();
    if whole.len() < MIN_REQUESTS {
        let mut what = format!(
            "{} of {} requests were answered whole and have a first-token time: expected at least {MIN_REQUESTS}",
            whole.len(),
            rows.len()
        );
        if rows.iter().all(|row| row.ttft_ns.is_none()) {
            what.push_str("; name columns with `--map ttft_ms=COLUMN`");
            if !unused.is_empty() {
                what.push_str(&format!("; not used are {}", unused.join(", ")));
            }
        }
        return Err(FitError::data(name, what));
    }
    let refuse = |count: usize, what: &str| match count {
        0 => Ok(()),
        count => Err(FitError::data(name, format!("{count} of {} requests {what}", rows.len()))),
    };
    refuse(
        whole.iter().filter(|row| row.e2e_ns.is_some_and(|e2e_ns| Some(e2e_ns) < row.ttft_ns)).count(),
        "have their first token after their end: the columns or their units are mixed up",
    )?;
    refuse(rows.iter().filter(|row| row.prompt_tokens == 0).count(), "have no prompt tokens: expected at least 1")?;
    refuse(
        whole.iter().filter(|row| row.ttft_ns == Some(0)).count(),
        "have a first-token time of 0: expected a positive time",
    )?;
    let mut warnings = Vec::new();
    let silent = rows.iter().filter(|row| row.ttft_ns.is_some() && row.output_tokens == 0).count();
    if silent > 0 {
        warnings.push(format!(
            "{name}: {silent} of {} requests have a first-token time and no output tokens, and are not compared; name \
             the column with `--map output_tokens=COLUMN`",
            rows.len()
        ));
    }
    let mut itl_ns: Vec<f64> = whole.iter().filter_map(|row| row.mean_itl_ns()).collect();
    itl_ns.sort_by(f64::total_cmp);
    if let Some(&median_ns) = itl_ns.get(itl_ns.len() / 2) {
        let ms = median_ns / 1e6;
        if ms < 0.1 {
            warnings.push(format!(
                "{name}: the median time between tokens is {ms:.4} ms; if times are in seconds, map them with their \
                 unit: `--map ttft_s=COLUMN`"
            ));
        } else if ms > 5_000.0 {
            warnings.push(format!(
                "{name}: the median time between tokens is {:.1} s; if times are in microseconds, map them with \
                 their unit: `--map ttft_us=COLUMN`",
                ms / 1e3
            ));
        }
        if itl_ns.first() == itl_ns.last() && itl_ns.len() > 1 {
            return Err(FitError::data(name, "all requests have the same time between tokens: nothing to fit"));
        }
    }
    let constant = |value: fn(&Measured) -> u32| whole.windows(2).all(|pair| value(pair[0]) == value(pair[1]));
    if constant(|row| row.prompt_tokens) {
        warnings.push(format!("{name}: all prompts have the same length, which does not fix the price of a token"));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The warnings about forty different requests after `change`.
    fn warnings(change: impl Fn(usize, &mut Measured)) -> Vec<String> {
        let mut measured: Vec<Measured> = (0..40)
            .map(|index| Measured {
                prompt_tokens: 100 + index,
                output_tokens: 20,
                ttft_ns: Some(30_000_000),
                e2e_ns: Some(200_000_000 + u64::from(index) * 1_000_000),
                is_whole: true,
                ..Measured::default()
            })
            .collect();
        measured.iter_mut().enumerate().for_each(|(index, request)| change(index, request));
        rows("a.csv", &measured.iter().collect::<Vec<_>>(), &[]).expect("they can be true")
    }

    #[test]
    fn columns_that_fix_little_or_contradict_each_other_are_warned_of() {
        assert!(warnings(|_, _| ()).is_empty());
        let alike = warnings(|_, request| request.prompt_tokens = 100);
        assert!(alike[0].starts_with("a.csv: all prompts have the same length"), "{alike:?}");
        let silent = warnings(|index, request| {
            if index < 2 {
                (request.output_tokens, request.is_whole) = (0, false);
            }
        });
        assert!(silent[0].starts_with("a.csv: 2 of 40 requests have a first-token time and no output"), "{silent:?}");
        let slow = warnings(|_, request| request.e2e_ns = request.e2e_ns.map(|ns| ns * 1_000));
        assert!(slow[0].contains("--map ttft_us=COLUMN"), "{slow:?}");
        let fast = warnings(|_, request| {
            request.ttft_ns = request.ttft_ns.map(|ns| ns / 1_000);
            request.e2e_ns = request.e2e_ns.map(|ns| ns / 1_000);
        });
        assert!(fast[0].contains("--map ttft_s=COLUMN"), "{fast:?}");
    }

    #[test]
    fn too_many_requests_are_refused() {
        let request = Measured::default();
        let error = rows("a.csv", &vec![&request; MAX_REQUESTS + 1], &[]).expect_err("they are too many");
        assert!(error.to_string().contains("more than 1000000 requests"), "{error}");
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        let refused = |change: &dyn Fn(&mut Measured)| {
            let mut request = Measured {
                prompt_tokens: 1,
                output_tokens: 3,
                ttft_ns: Some(30),
                e2e_ns: Some(60),
                is_whole: true,
                ..Measured::default()
            };
            change(&mut request);
            let requests = vec![request; 40];
            rows("a.csv", &requests.iter().collect::<Vec<_>>(), &[]).expect_err("they cannot be true").to_string()
        };
        let late = refused(&|request| request.e2e_ns = Some(20));
        assert!(late.contains("40 of 40 requests have their first token after their end"), "{late}");
        let empty = refused(&|request| request.prompt_tokens = 0);
        assert!(empty.contains("40 of 40 requests have no prompt tokens"), "{empty}");
        let instant = refused(&|request| request.ttft_ns = Some(0));
        assert!(instant.contains("40 of 40 requests have a first-token time of 0"), "{instant}");
        let same = refused(&|_| ());
        assert!(same.contains("all requests have the same time between tokens"), "{same}");
        let unknown = refused(&|request| request.is_whole = false);
        assert!(unknown.contains("0 of 40 requests were answered whole"), "{unknown}");
    }
}
