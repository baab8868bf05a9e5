//! Escapes texts for HTML, XML, Markdown and JSON inside HTML. Formats numbers for people.

use std::fmt::{self, Display, Write as _};

/// A text that has no effect as markup in HTML or XML. XML cannot contain most control characters, not even as
/// references, so Unicode's pictures of them are shown instead.
pub struct Escaped<T>(
    /// The text.
    pub T,
);

impl<T: AsRef<str>> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.as_ref().chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(character)?,
                '\0'..='\x1f' => f.write_char(char::from_u32(0x2400 + u32::from(character)).unwrap_or('?'))?,
                '\x7f'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

pub(crate) struct Cell<T>(pub(crate) T);

impl<T: AsRef<str>> Display for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.as_ref().chars() {
            match character {
                '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '~' | '#' | '!' | '@' => write!(f, "\\{character}")?,
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                _ if character.is_control() => f.write_char(' ')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Escapes JSON for a `script` element, which `</script` or `<!--` would end or change.
pub(crate) fn json_in_html(json: &str) -> String {
    // JSON contains these characters only inside strings.
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Formats milliseconds as the summary on the terminal does.
pub(crate) fn time(ms: f64) -> String {
    vcr_base::units::format_ns(ms * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: &str = "</script><img src=x onerror='alert(\"1\")'>&amp;\0\u{7f}\n|";

    #[test]
    fn nothing_in_a_text_is_markup() {
        let escaped = Escaped(BAD).to_string();
        assert!(!escaped.contains(['<', '>', '"', '\'', '\0', '\u{7f}']), "{escaped}");
        assert!(escaped.contains("&amp;amp;"), "{escaped}");
        let cell = Cell(BAD).to_string();
        assert!(!cell.contains(['<', '\n', '\0']) && cell.ends_with("\\|"), "{cell}");
    }

    #[test]
    fn json_in_html_is_the_same_json() {
        let json = serde_json::to_string(BAD).expect("a text is JSON");
        let inside = json_in_html(&json);
        assert!(!inside.contains('<'));
        assert_eq!(serde_json::from_str::<String>(&inside).expect("JSON"), BAD);
    }
}
