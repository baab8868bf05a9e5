//! Tables in the docs that are generated from the code.

use std::fs;

use crate::root;

/// If this variable is set, the compared files are rewritten instead.
const UPDATE: &str = "UPDATE_DOCS";

/// Compares rows of a table with rows that have the same first cells in a page of `docs/`: in the first table below
/// a heading. Other rows of the page are ignored.
///
/// # Panics
/// A row is missing or differs, and `UPDATE_DOCS` is not set.
#[track_caller]
pub fn check_rows(page: &str, heading: &str, rows: &[Vec<String>]) {
    let written: Vec<String> = rows.iter().map(|cells| row(cells)).collect();
    rewrite_table(page, heading, |old| {
        let mut body = old.to_vec();
        for row in &written {
            let first = first_cell(row);
            match body.iter_mut().find(|line| first_cell(line) == first) {
                Some(line) => line.clone_from(row),
                None => body.push(row.clone()),
            }
        }
        body
    });
}

/// Compares a whole table like [`check_rows`].
///
/// # Panics
/// A row is missing or differs, and `UPDATE_DOCS` is not set.
#[track_caller]
pub fn check_table(page: &str, heading: &str, rows: &[Vec<String>]) {
    rewrite_table(page, heading, |_| rows.iter().map(|cells| row(cells)).collect());
}

/// Compares a file of the repository with its expected contents.
///
/// # Panics
/// The file differs, and `UPDATE_DOCS` is not set.
#[track_caller]
pub fn check_file(path: &str, wanted: &str) {
    let file = root().join(path);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    if text == wanted {
        return;
    }
    if std::env::var_os(UPDATE).is_some() {
        return fs::write(&file, wanted).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let missing: Vec<&str> = wanted.lines().filter(|line| !text.lines().any(|known| known == *line)).collect();
    panic!("{path} is not up to date; write it with {UPDATE}=1. It lacks:\n{}", missing.join("\n"));
}

#[track_caller]
fn rewrite_table(page: &str, heading: &str, body: impl Fn(&[String]) -> Vec<String>) {
    let path = format!("docs/{page}");
    let text = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let found = lines.iter().position(|line| line == heading);
    let heading = found.unwrap_or_else(|| panic!("{path} has no heading `{heading}`"));
    let rule = lines[heading..].iter().position(|line| line.starts_with("|---"));
    let begin = heading + rule.unwrap_or_else(|| panic!("{path} has no table below `{}`", lines[heading])) + 1;
    let length = lines[begin..].iter().take_while(|line| line.starts_with('|')).count();
    let (before, rest) = lines.split_at(begin);
    let (old, after) = rest.split_at(length);
    let all = [before, &body(old), after].concat();
    check_file(&path, &(all.join("\n") + "\n"));
}

fn first_cell(line: &str) -> Option<&str> {
    line.split('|').nth(1).map(str::trim)
}

fn row(cells: &[String]) -> String {
    let cells = cells.iter().map(|cell| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") });
    format!("|{}", cells.collect::<String>())
}
