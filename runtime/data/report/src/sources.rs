//! Writes the scenarios of a page: parameters and scripts. Equal scripts are shown once; different scripts are
//! shown with their difference.

use std::io::{self, Write};

use crate::charts::Source;
use crate::folder::Folder;
use crate::text::Escaped;

const MAX_SOURCE_BYTES: usize = 256 << 10;
const MAX_LINES: usize = 2000;
/// Longer texts are folded at first.
const OPEN_LINES: usize = 60;

pub(crate) fn write_sources(out: &mut dyn Write, folders: &[Folder]) -> io::Result<()> {
    let several = folders.len() > 1;
    let texts: Vec<&Source> = folders.iter().filter_map(|folder| folder.charts.source.as_ref()).collect();
    let are_equal = texts.len() == folders.len() && texts.windows(2).all(|pair| pair[0].text == pair[1].text);
    for (index, folder) in folders.iter().enumerate() {
        write_facts(out, folder, several)?;
        match &folder.charts.source {
            Some(_) if are_equal && index > 0 => {}
            Some(source) if index == 0 => write_text(out, source)?,
            Some(source) => match texts.first().and_then(|first| difference(&first.text, &source.text)) {
                Some(lines) => write_difference(out, source, &lines)?,
                None => write_text(out, source)?,
            },
            None => {}
        }
        writeln!(out, "</section>")?;
    }
    Ok(())
}

fn write_facts(out: &mut dyn Write, folder: &Folder, several: bool) -> io::Result<()> {
    let report = &folder.report;
    let of = if several { format!(" of {}", folder.label) } else { String::new() };
    writeln!(out, "<section class=\"source\"><h2>Scenario{}</h2>\n<dl>", Escaped(of))?;
    let mut seeds: Vec<u64> = report.runs.iter().map(|run| run.seed).collect();
    seeds.dedup();
    seeds.truncate(16);
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let facts = [
        ("Fingerprint", report.fingerprint.clone()),
        (if seeds.len() == 1 { "Seed" } else { "Seeds" }, seeds.join(", ")),
        ("SHA-256 of the script", report.scenario_sha256.clone()),
        ("Version of vcr", report.vcr_version.clone()),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "<dt>{name}</dt><dd><code>{}</code></dd>", Escaped(value))?;
    }
    for (key, value) in &report.parameters {
        writeln!(out, "<dt>Parameter <code>{}</code></dt><dd><code>{}</code></dd>", Escaped(key), Escaped(value))?;
    }
    for input in &report.inputs {
        let (kind, path) = (Escaped(&input.kind), Escaped(&input.path));
        let sha256 = Escaped(&input.sha256);
        writeln!(out, "<dt>Input ({kind})</dt><dd><code>{path}</code><br><code>sha256 {sha256}</code></dd>")?;
    }
    writeln!(out, "</dl>")
}

fn write_text(out: &mut dyn Write, Source { name, text }: &Source) -> io::Result<()> {
    let end = (0..=MAX_SOURCE_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let open = if text.lines().count() <= OPEN_LINES { " open" } else { "" };
    writeln!(out, "<details{open}><summary>{}</summary>", Escaped(name))?;
    writeln!(out, "<pre tabindex=\"0\"><code>{}</code></pre></details>", Escaped(&text[..end]))?;
    match end < text.len() {
        true => writeln!(out, "<p>The first {end} of {} bytes are shown.</p>", text.len()),
        false => Ok(()),
    }
}

fn write_difference(out: &mut dyn Write, source: &Source, lines: &[(char, &str)]) -> io::Result<()> {
    writeln!(out, "<details open><summary>{}: difference from the first scenario</summary>", Escaped(&source.name))?;
    write!(out, "<pre tabindex=\"0\"><code>")?;
    for (sign, line) in lines {
        let line = Escaped(line);
        match sign {
            '+' => writeln!(out, "<ins>+ {line}</ins>")?,
            '-' => writeln!(out, "<del>- {line}</del>")?,
            _ => writeln!(out, "  {line}")?,
        }
    }
    writeln!(out, "</code></pre></details>")
}

/// Compares two texts line by line. Marks each line as removed, added or common. None for long texts.
fn difference<'a>(before: &'a str, after: &'a str) -> Option<Vec<(char, &'a str)>> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    if before.len().max(after.len()) > MAX_LINES {
        return None;
    }
    // The length of the longest common subsequence of the remaining lines, by the number of lines passed in each
    // text.
    let width = after.len() + 1;
    let mut common = vec![0_u16; (before.len() + 1) * width];
    for (row, old) in before.iter().enumerate().rev() {
        for (column, new) in after.iter().enumerate().rev() {
            let next = (row + 1) * width + column;
            common[row * width + column] =
                if old == new { common[next + 1] + 1 } else { common[next].max(common[row * width + column + 1]) };
        }
    }
    let (mut row, mut column, mut lines) = (0, 0, Vec::new());
    while row < before.len() || column < after.len() {
        let (old, new) = (before.get(row), after.get(column));
        match (old, new) {
            (Some(old), Some(new)) if old == new => {
                lines.push((' ', *old));
                (row, column) = (row + 1, column + 1);
            }
            (Some(old), _)
                if new.is_none() || common[(row + 1) * width + column] >= common[row * width + column + 1] =>
            {
                lines.push(('-', *old));
                row += 1;
            }
            (_, Some(new)) => {
                lines.push(('+', *new));
                column += 1;
            }
            _ => break,
        }
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_keeps_common_lines() {
        let lines = difference("a\nb\nc\nd", "a\nx\nc\nd\ne").expect("short texts");
        assert_eq!(lines, [(' ', "a"), ('-', "b"), ('+', "x"), (' ', "c"), (' ', "d"), ('+', "e")]);
        assert_eq!(difference("", "a"), Some(vec![('+', "a")]));
        assert_eq!(difference("a\n", ""), Some(vec![('-', "a")]));
        assert_eq!(difference(&"a\n".repeat(MAX_LINES + 1), ""), None);
    }
}
