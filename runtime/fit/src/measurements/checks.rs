//! Whether measurements can be true.

use crate::error::FitError;
use crate::measurements::measured::Measured;

/// Fewer whole requests than this fix nothing.
const MIN_REQUESTS: usize = 20;

/// Checks the requests of a file, in order of arrival. Gives what looks odd.
///
/// # Errors
/// When there are too few, or their times contradict each other.
pub(crate) fn rows(name: &str, rows: &[&Measured]) -> Result<Vec<String>, FitError> {
    let whole: Vec<&Measured> = rows.iter().copied().filter(|row| row.is_whole).collect();
    if whole.len() < MIN_REQUESTS {
        let what = format!(
            "{} of {} requests were answered whole and have a first-token time: expected at least {MIN_REQUESTS}; \
             name columns with `--map ttft_ms=COLUMN`",
            whole.len(),
            rows.len()
        );
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
