//! Whole numbers in vLLM's notation.

/// A number such as `4096`, `32k` (32,000), `25.6k` or `32K` (32,768).
pub fn whole(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let expected = || "a whole number such as 4096, 32k (32,000) or 32K (32,768)".to_owned();
    let (digits, suffix) = match text.char_indices().next_back() {
        Some((at, suffix)) if suffix.is_ascii_alphabetic() => (&text[..at], Some(suffix)),
        _ => (text, None),
    };
    let Some(suffix) = suffix else { return digits.parse().map_err(|_| expected()) };
    let power = match suffix.to_ascii_lowercase() {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        _ => return Err(expected()),
    };
    if suffix.is_ascii_uppercase() {
        let of_1024 = |count: u64| count.checked_mul(1_u64 << (10 * power)).ok_or_else(expected);
        return match digits.parse::<u64>() {
            Ok(count) => of_1024(count),
            Err(_) if digits.parse::<f64>().is_ok() => Err(format!(
                "no decimals before {suffix}, which counts by 1,024; {digits}{} counts by 1,000",
                suffix.to_ascii_lowercase()
            )),
            Err(_) => Err(expected()),
        };
    }
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(decimals) || digits.ends_with('.') {
        return Err(expected());
    }
    // Further decimals are less than one.
    let places = 3 * power as usize;
    let kept: String = format!("{decimals:0<places$}").chars().take(places).collect();
    format!("{whole}{kept}").parse().map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_those_of_vllm() {
        for (text, number) in [
            ("4096", 4_096),
            ("1k", 1_000),
            ("1K", 1_024),
            ("25.6k", 25_600),
            ("1.0005k", 1_000),
            ("2M", 2 << 20),
            ("3g", 3_000_000_000),
        ] {
            assert_eq!(whole(text), Ok(number), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "k", "x", "1.5", "-1", "1.k", ".5k", "1e3", "10000000000T", "1.2.3k", "9999999999999999999999k"]
        {
            let error = whole(text).unwrap_err();
            assert!(error.starts_with("a whole number"), "{text}: {error}");
        }
        assert_eq!(whole("1.5K").unwrap_err(), "no decimals before K, which counts by 1,024; 1.5k counts by 1,000");
    }
}
