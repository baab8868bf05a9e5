/// Largest number of values; more suggest a typo in a range.
const MAX_VALUES: f64 = 10_000.0;

/// Parses the values of `1..16`, `0.5..2..0.5` or `a,b,c`, in order. Ranges include both ends.
pub(super) fn values(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split("..").collect::<Vec<_>>()[..] {
            [""] => return Err("a value is empty".to_owned()),
            [single] => all.push(single.to_owned()),
            [from, to] => all.extend(range(from, to, "1")?),
            [from, to, step] => all.extend(range(from, to, step)?),
            _ => return Err(format!("invalid range `{part}`: expected FROM..TO or FROM..TO..STEP")),
        }
    }
    match all.iter().enumerate().find(|(index, value)| all[..*index].contains(value)) {
        Some((_, twice)) => Err(format!("`{twice}` is given twice")),
        None => Ok(all),
    }
}

fn range(from: &str, to: &str, step: &str) -> Result<Vec<String>, String> {
    let number = |text: &str| {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("invalid number `{text}`"))
    };
    let decimals = [from, to, step].map(|text| text.split_once('.').map_or(0, |(_, digits)| digits.len()));
    let decimals = decimals.into_iter().max().unwrap_or(0);
    let (first, last, width) = (number(from)?, number(to)?, number(step)?);
    if width <= 0.0 || last < first {
        return Err(format!(
            "`{from}..{to}..{step}` has no values: expected a step above 0 and an end from the start on"
        ));
    }
    // Rounding errors of the step must not drop the last value.
    let steps = ((last - first) / width + 1e-9).floor();
    if steps >= MAX_VALUES {
        return Err(format!("`{from}..{to}..{step}` has more than {MAX_VALUES} values"));
    }
    Ok((0..=steps as u32).map(|index| format!("{:.decimals$}", first + f64::from(index) * width)).collect())
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn ranges_have_both_ends_and_lists_their_order() {
        let of = |text: &str| values(text).expect("valid").join(" ");
        assert_eq!(of("1..4"), "1 2 3 4");
        assert_eq!(of("1..8..3"), "1 4 7");
        assert_eq!(of("0.1..0.3..0.1"), "0.1 0.2 0.3");
        assert_eq!(of("b,a,1..2"), "b a 1 2");
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        let refused = |text: &str| values(text).expect_err("it is wrong");
        assert_eq!(refused("1,,2"), "a value is empty");
        assert_eq!(refused("1..x"), "invalid number `x`");
        assert!(refused("4..1").contains("has no values"));
        assert!(refused("1..9..0").contains("has no values"));
        assert!(refused("0..1e9").contains("more than 10000 values"));
        assert_eq!(refused("1,1..3"), "`1` is given twice");
        assert!(refused("1..2..3..4").contains("invalid range"));
    }
}
