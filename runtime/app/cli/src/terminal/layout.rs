//! Fits text to the width of the terminal.

use std::io::{self, Write};

use comfy_table::{ColumnConstraint, Table, Width};

/// Width of a file or a pipe, whose lines do not wrap.
const UNLIMITED: usize = usize::MAX;

/// Minimum width; narrower terminals wrap.
const MIN_WIDTH: usize = 40;

/// Width and amount of detail of a summary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Whether to show every metric, run, engine, workload and column, even if too wide.
    pub(crate) full: bool,
    pub(crate) width: usize,
}

impl Layout {
    /// The layout of standard output: `COLUMNS`, or the terminal's width.
    pub(crate) fn of_stdout(full: bool) -> Self {
        let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let terminal = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
        let width = asked.or_else(terminal).filter(|width| *width > 0);
        Self { full, width: width.unwrap_or(UNLIMITED).max(MIN_WIDTH) }
    }

    /// Hides columns of a table, in the order of `order`, until it fits. Returns whether any was hidden.
    pub(crate) fn fit(self, table: &mut Table, order: &[&str]) -> bool {
        let mut is_hidden = false;
        for title in order {
            if self.full || width_of(table) <= self.width {
                break;
            }
            let titles = table.header().map(|header| header.cell_iter().map(|cell| cell.content()).collect::<Vec<_>>());
            let found = titles.and_then(|titles| titles.iter().position(|known| known.trim() == *title));
            if let Some(column) = found.and_then(|index| table.column_mut(index)) {
                column.set_constraint(ColumnConstraint::Hidden);
                is_hidden = true;
            }
        }
        is_hidden
    }

    /// Wraps the last column of a table so that the table fits.
    pub(crate) fn wrap_last(self, table: &mut Table) {
        /// Narrower columns are hard to read.
        const MIN_CELL: usize = 24;
        let excess = width_of(table).saturating_sub(self.width);
        let content = table.column_max_content_widths().last().copied().unwrap_or(0);
        let last = table.column_count().saturating_sub(1);
        let cells = table.column_cells_iter(last).flatten().map(|cell| cell.content());
        let longest_word = cells.flat_map(|text| text.split(' ').map(|word| word.chars().count()).max()).max();
        let Some(column) = table.column_iter_mut().last().filter(|_| excess > 0) else { return };
        let padding = usize::from(column.padding_width());
        let width = usize::from(content) + padding;
        let width = width.saturating_sub(excess).max(MIN_CELL).max(longest_word.unwrap_or(0) + padding);
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(u16::try_from(width).unwrap_or(u16::MAX))));
    }
}

fn width_of(table: &Table) -> usize {
    table.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0)
}

/// Writes text with an indent, wrapped at spaces.
pub(crate) fn write_wrapped(out: &mut dyn Write, indent: &str, text: &str, width: usize) -> io::Result<()> {
    for line in wrapped(text, width.saturating_sub(indent.len())) {
        writeln!(out, "{indent}{line}")?;
    }
    Ok(())
}

/// Wraps text at spaces to lines of at most `width` characters. A longer word gets its own line.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.lines() {
        let mut words = paragraph.split(' ');
        let mut line = words.next().unwrap_or_default().to_owned();
        for word in words {
            let length = line.chars().count() + 1 + word.chars().count();
            if length > width && !line.trim().is_empty() {
                lines.push(line.trim_end().to_owned());
                line = word.to_owned();
            } else if line.is_empty() && !lines.is_empty() {
                // Drop the space at the break.
                line = word.to_owned();
            } else {
                line.push(' ');
                line.push_str(word);
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::style::bare_table;

    #[test]
    fn words_are_wrapped_and_never_broken() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped(" one  two", 20), [" one  two"], "spaces within a line stay");
        assert_eq!(wrapped("one   two", 4), ["one", "two"]);
        assert_eq!(wrapped("a-very-long-word b", 4), ["a-very-long-word", "b"]);
        assert_eq!(wrapped("µµµµ µµµµ\nx", 9), ["µµµµ µµµµ", "x"]);
    }

    #[test]
    fn columns_are_hidden_in_their_order_until_a_table_fits() {
        let table = || {
            let mut table = bare_table();
            table.set_header(["name", "first", "second", "third"]);
            table.add_row(["x", "1234567890", "1234567890", "1234567890"]);
            table
        };
        let lines = |layout: Layout| {
            let mut table = table();
            let is_hidden = layout.fit(&mut table, &["second", "third"]);
            (is_hidden, table.lines().map(|line| line.split_whitespace().count()).max())
        };
        let of = |width| Layout { full: false, width };
        assert_eq!(lines(of(100)), (false, Some(4)));
        assert_eq!(lines(of(40)), (true, Some(3)));
        assert_eq!(lines(of(24)), (true, Some(2)));
        assert_eq!(lines(of(1)), (true, Some(2)), "what is in no order stays");
        assert_eq!(lines(Layout { full: true, width: 1 }), (false, Some(4)));
    }

    #[test]
    fn words_of_the_last_column_are_wrapped() {
        let lines = |width: usize| {
            let mut table = bare_table();
            table.add_row(["one", "a text of many words that is wider than most terminals are"]);
            table.add_row(["two", "short"]);
            Layout { full: true, width }.wrap_last(&mut table);
            table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(lines(80).len(), 2);
        let narrow = lines(40);
        assert!(narrow.len() > 2 && narrow.iter().all(|line| line.chars().count() <= 40), "{narrow:#?}");
        assert_eq!(narrow.join(" ").split_whitespace().count(), 15, "{narrow:#?}");
        let mut table = bare_table();
        table.add_row(["a column that leaves little room", "--a-flag-that-is-rather-long 16384"]);
        Layout { full: true, width: 40 }.wrap_last(&mut table);
        let lines = table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert!(lines[0].ends_with(" --a-flag-that-is-rather-long"), "a word is never broken: {lines:#?}");
    }
}
