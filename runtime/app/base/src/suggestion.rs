//! Suggestions for mistyped names.

/// The valid name closest to a mistyped one, if any is close. Case is ignored.
pub fn nearest<'a>(name: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    // Of equally close names, prefer one of the same length: swapped letters are more common than lost ones.
    let length = |text: &str| text.chars().count();
    let scored = valid.into_iter().map(|candidate| {
        let distance = strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
        (distance, length(&name).abs_diff(length(candidate)), candidate)
    });
    let (distance, _, best) = scored.min()?;
    (distance <= 2 || distance * 3 <= length(&name)).then_some(best)
}

/// A hint with a suggested name.
#[must_use]
pub fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}
