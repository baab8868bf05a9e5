//! Shows the line of a script that an error is about, with a caret.

use std::path::Path;

use vcr_base::input::MAX_SCRIPT_BYTES;
use vcr_scenario::ScenarioError;

/// Maximum length of the shown part.
const MAX_COLUMNS: usize = 120;

/// The error, with its line if it can be read.
pub(crate) fn with_line(error: &ScenarioError) -> String {
    let text = error.to_string();
    match error.at.and_then(|at| of_file(Path::new(&error.file), at)) {
        Some(excerpt) => format!("{text}\n{excerpt}"),
        None => text,
    }
}

/// The line in a file; none for errors in command-line options, whose source is not a file.
fn of_file(path: &Path, (line, column): (usize, usize)) -> Option<String> {
    let source = vcr_base::input::read_text(path, MAX_SCRIPT_BYTES).ok()?;
    of_source(&source, line, column)
}

/// The line of a script, and a caret below the column.
pub(crate) fn of_source(source: &str, line: usize, column: usize) -> Option<String> {
    excerpt(source.strip_prefix('\u{feff}').unwrap_or(source), line, column)
}

/// A line, and a caret below the column; both are counted from 1.
fn excerpt(source: &str, line: usize, column: usize) -> Option<String> {
    let text: Vec<char> = source.lines().nth(line.checked_sub(1)?)?.chars().collect();
    let at = column.saturating_sub(1).min(text.len());
    // Show the part of a long line around the column.
    let from = if text.len() > MAX_COLUMNS { at.saturating_sub(MAX_COLUMNS / 2) } else { 0 };
    let shown: String = text.iter().skip(from).take(MAX_COLUMNS).map(|c| if *c == '\t' { ' ' } else { *c }).collect();
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let caret = " ".repeat(at - from);
    Some(format!(" {margin} |\n {number} | {}\n {margin} | {caret}^", shown.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::excerpt;

    #[test]
    fn the_caret_is_below_its_column() {
        let source = "let a = 1;\nlet b =\tengin(#{});\n";
        assert_eq!(excerpt(source, 2, 9).as_deref(), Some("   |\n 2 | let b = engin(#{});\n   |         ^"));
        assert_eq!(
            excerpt(source, 2, 999).as_deref(),
            Some("   |\n 2 | let b = engin(#{});\n   |                    ^")
        );
        assert_eq!(excerpt(source, 3, 1), None);
        assert_eq!(excerpt(source, 0, 1), None);
    }

    #[test]
    fn of_a_long_line_only_the_part_around_it_is_shown() {
        let source = format!("{}!{}", "a".repeat(500), "b".repeat(500));
        let shown = excerpt(&source, 1, 501).expect("a line");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].find('!'), lines[2].find('^'));
        assert_eq!(lines[1].chars().count(), " 1 | ".len() + 120);
    }
}
