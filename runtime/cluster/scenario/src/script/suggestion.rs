//! Suggestions for mistyped names.

/// The valid name closest to a mistyped one, if any is close.
pub fn nearest<'a>(name: &str, valid: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Among equally close names the one of equal length: letters get swapped
    // more often than lost.
    let length = |text: &str| text.chars().count();
    let scored = valid.map(|candidate| {
        (strsim::damerau_levenshtein(name, candidate), length(name).abs_diff(length(candidate)), candidate)
    });
    let (distance, _, best) = scored.min()?;
    (distance <= 2 || distance * 3 <= name.chars().count()).then_some(best)
}

pub(crate) fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}
