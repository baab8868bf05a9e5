//! Folders of ServeGen. Each client has a trace of its rates (`chunk-N-trace.csv`) and the lengths of its requests
//! (`chunk-N-dataset.json`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use vcr_base::random::weibull_shape;
use vcr_cluster::{Arrivals, Curve, Gaps, Histogram, Lengths, Limit, Piece, RequestMix, WorkloadConfig};

use super::synthetic;

/// Duration of the last row of a trace. Other rows end where the next row begins.
const WINDOW_S: f64 = 600.0;

/// Coefficients of variation with which gaps can be drawn.
const VARIATIONS: std::ops::RangeInclusive<f64> = 0.01..=10.4;

struct Window {
    start_s: f64,
    duration_s: f64,
    rate_per_s: f64,
    gaps: Gaps,
}

/// The lengths of requests from a time on.
struct LengthsFrom {
    start_s: f64,
    prompt_tokens: Arc<Histogram>,
    output_tokens: Arc<Histogram>,
}

/// The workloads of a folder. Each row of a client with requests becomes a workload, because gaps and lengths
/// differ between rows. The earliest row of the folder starts at 0.
pub(super) fn workloads(folder: &Path) -> Result<Vec<WorkloadConfig>, String> {
    let mut clients = Vec::new();
    for (number, name) in names(folder)? {
        let path = |kind: &str| folder.join(format!("{name}-{kind}"));
        let windows = windows(&read(&path("trace.csv"))?).map_err(|problem| format!("{name}-trace.csv: {problem}"))?;
        let lengths =
            lengths(&read(&path("dataset.json"))?).map_err(|problem| format!("{name}-dataset.json: {problem}"))?;
        clients.push((number, windows, lengths));
    }
    if clients.is_empty() {
        return Err("no client of ServeGen: expected chunk-N-trace.csv and chunk-N-dataset.json".to_owned());
    }
    clients.sort_by_key(|(number, ..)| *number);
    let starts = clients.iter().flat_map(|(_, windows, _)| windows).map(|window| window.start_s);
    let begin_s = starts.fold(f64::INFINITY, f64::min);
    let mut workloads = Vec::new();
    for (number, windows, lengths) in &clients {
        for window in windows.iter().filter(|window| window.rate_per_s > 0.0) {
            // The data set lists lengths for fewer times than the trace lists rates.
            let known = lengths.iter().rev().find(|known| known.start_s <= window.start_s);
            let Some(known) = known.or(lengths.first()) else {
                return Err(format!("chunk-{number}-dataset.json: has no lengths"));
            };
            workloads.push(workload(*number, window, known, begin_s));
        }
    }
    Ok(workloads)
}

fn workload(number: u64, window: &Window, lengths: &LengthsFrom, begin_s: f64) -> WorkloadConfig {
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    let rate = Curve::once(vec![Piece::level(ns(window.duration_s), window.rate_per_s)]);
    let limit = Limit { count: None, duration_ns: Some(ns(window.duration_s)) };
    let [prompt_tokens, output_tokens] =
        [&lengths.prompt_tokens, &lengths.output_tokens].map(|known| Lengths::Counted(Arc::clone(known)));
    let name = format!("chunk-{number} {}s", window.start_s);
    let arrivals = Arrivals::Varying { rate, gaps: window.gaps, limit };
    let mut workload = synthetic(&name, arrivals, RequestMix::new(prompt_tokens, output_tokens));
    workload.start_ns = ns(window.start_s - begin_s);
    // Each client is a tenant; tenants are numbered from 1.
    workload.tenant = number + 1;
    workload
}

/// Numbers and names of the clients in a folder.
fn names(folder: &Path) -> Result<Vec<(u64, String)>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        let name = file.strip_suffix("-trace.csv");
        let number = name.and_then(|name| name.strip_prefix("chunk-")?.parse().ok());
        names.extend(number.zip(name.map(str::to_owned)));
    }
    Ok(names)
}

fn read(path: &Path) -> Result<String, String> {
    vcr_base::input::read_text(path, vcr_base::input::MAX_CONFIG_BYTES)
        .map_err(|error| format!("`{}` cannot be read: {error}", path.display()))
}

/// Reads the rows of a trace. Their columns are the start in seconds, requests per second, the gaps' coefficient of
/// variation, and the family and parameters of their distribution. The parameters follow from rate and variation.
fn windows(text: &str) -> Result<Vec<Window>, String> {
    let rows = text.lines().zip(1..).filter(|(row, _)| !row.trim().is_empty());
    let mut windows: Vec<Window> = Vec::new();
    for (row, line) in rows {
        let window = window(row).map_err(|problem| format!("line {line}: {problem}"))?;
        if let Some(before) = windows.last_mut() {
            before.duration_s = window.start_s - before.start_s;
            if before.duration_s <= 0.0 {
                return Err(format!("line {line}: invalid start {}: expected a later one than before", window.start_s));
            }
        }
        windows.push(window);
    }
    Ok(windows)
}

fn window(row: &str) -> Result<Window, String> {
    let cells: Vec<&str> = row.split(',').map(str::trim).collect();
    let [start, rate, variation, family, ..] = cells[..] else {
        return Err(format!("has {} columns: expected start, rate, variation and distribution", cells.len()));
    };
    let number = |name: &str, cell: &str| {
        let number = cell.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| format!("invalid {name} `{cell}`: expected a number of at least 0"))
    };
    let (start_s, rate_per_s) = (number("start", start)?, number("rate", rate)?);
    // Rows without requests have no gaps.
    if rate_per_s == 0.0 {
        return Ok(Window { start_s, duration_s: WINDOW_S, rate_per_s, gaps: Gaps::Even });
    }
    let variation = number("variation", variation)?;
    let is_drawn = matches!(family.to_lowercase().as_str(), "gamma" | "weibull");
    if is_drawn && !VARIATIONS.contains(&variation) {
        let (least, most) = (VARIATIONS.start(), VARIATIONS.end());
        return Err(format!("invalid variation {variation}: expected {least} to {most}"));
    }
    let gaps = match family.to_lowercase().as_str() {
        "gamma" => Gaps::Gamma { shape: 1.0 / (variation * variation) },
        "weibull" => Gaps::Weibull { shape: weibull_shape(variation) },
        "" | "poisson" | "exponential" | "expon" => Gaps::Exponential,
        _ => return Err(format!("invalid distribution `{family}`: expected Gamma, Weibull, Exponential or none")),
    };
    Ok(Window { start_s, duration_s: WINDOW_S, rate_per_s, gaps })
}

/// Reads the lengths of a data set, in order of time. Times without requests have no lengths.
fn lengths(text: &str) -> Result<Vec<LengthsFrom>, String> {
    let times: BTreeMap<String, BTreeMap<String, serde_json::Value>> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut known = Vec::new();
    for (time, fields) in times {
        let start_s = time.parse::<f64>().map_err(|_| format!("invalid time `{time}`: expected seconds"))?;
        let of = |name: &str| {
            let text = fields.get(name).and_then(serde_json::Value::as_str);
            let text = text.ok_or_else(|| format!("{time}.{name}: is missing"))?;
            histogram(text).map_err(|problem| format!("{time}.{name}: {problem}"))
        };
        if let (Some(prompt_tokens), Some(output_tokens)) = (of("input_tokens")?, of("output_tokens")?) {
            known.push(LengthsFrom { start_s, prompt_tokens, output_tokens });
        }
    }
    known.sort_by(|one, other| one.start_s.total_cmp(&other.start_s));
    Ok(known)
}

/// Reads a dictionary in Python's notation: lengths with their shares.
fn histogram(text: &str) -> Result<Option<Arc<Histogram>>, String> {
    let inner = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let inner = inner.ok_or("expected lengths with shares, such as {100: 0.5, 200: 0.5}")?;
    let mut ranges = Vec::new();
    for pair in inner.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let invalid = || format!("invalid length `{pair}`: expected LENGTH: SHARE");
        let (length, share) = pair.split_once(':').ok_or_else(invalid)?;
        let length = length.trim().parse::<f64>().ok().filter(|length| (0.0..=1e7).contains(length));
        let share = share.trim().parse::<f64>().ok().filter(|share| share.is_finite() && *share >= 0.0);
        let (length, share) = length.zip(share).ok_or_else(invalid)?;
        let length = length.round().max(1.0) as u32;
        ranges.push((length, length, share));
    }
    if ranges.is_empty() { Ok(None) } else { Histogram::new(&ranges).map(|known| Some(Arc::new(known))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_gaps_and_lengths_are_those_of_the_time() {
        let rows = windows("600,2.5,2,Gamma,0.25,1.6\n900,0,,,,\n1800.0,1,1.5,Weibull,0.7,1\n2400,3,1,,,\n").unwrap();
        assert_eq!(rows.iter().map(|row| row.duration_s).collect::<Vec<_>>(), [300.0, 900.0, 600.0, 600.0]);
        let gaps: Vec<Gaps> = rows.iter().map(|row| row.gaps).collect();
        let weibull = Gaps::Weibull { shape: weibull_shape(1.5) };
        assert_eq!(gaps, [Gaps::Gamma { shape: 0.25 }, Gaps::Even, weibull, Gaps::Exponential]);
        let text = r#"{"21600": {"input_tokens": "{}", "output_tokens": "{}"},
            "0": {"input_tokens": "{100: 5e-1, 200.0: 0.5,}", "output_tokens": "{7: 1.0}"}}"#;
        let known = lengths(text).unwrap();
        assert_eq!(known.len(), 1, "times without requests have no lengths");
        assert_eq!(*known[0].prompt_tokens, Histogram::new(&[(100, 100, 0.5), (200, 200, 0.5)]).unwrap());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let problem = |row: &str| window(row).map(|_| ()).unwrap_err();
        let unordered = windows("600,1,1,,,\n0,1,1,,,\n").map(|_| ()).unwrap_err();
        assert_eq!(unordered, "line 2: invalid start 0: expected a later one than before");
        assert_eq!(problem("0,1"), "has 2 columns: expected start, rate, variation and distribution");
        assert_eq!(problem("0,-1,1,Gamma"), "invalid rate `-1`: expected a number of at least 0");
        assert_eq!(problem("0,1,170,Weibull"), "invalid variation 170: expected 0.01 to 10.4");
        assert_eq!(problem("0,1,1,Zipf"), "invalid distribution `Zipf`: expected Gamma, Weibull, Exponential or none");
        assert!(histogram("[1, 2]").unwrap_err().starts_with("expected lengths with shares"));
        assert_eq!(histogram("{7: x}").unwrap_err(), "invalid length `7: x`: expected LENGTH: SHARE");
    }
}
