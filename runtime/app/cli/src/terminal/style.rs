use std::io::{self, Write};

use anstyle::{AnsiColor, Color, Style};
use comfy_table::{CellAlignment, Table, presets};

use crate::terminal::layout::wrapped;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Green)));
pub(crate) const RED: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Red)));
pub(crate) const YELLOW: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Yellow)));

pub(crate) fn write_table(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    table.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

/// Writes a table with a pass or fail mark before each row, and failed rows in red. The table must have no colours.
pub(crate) fn write_marked(
    out: &mut dyn Write,
    table: &Table,
    width: usize,
    passed: impl Iterator<Item = bool>,
) -> io::Result<()> {
    const INDENT: &str = "      ";
    for (line, passed) in table.lines().zip(passed) {
        let lines = wrapped(line.trim_end(), width.saturating_sub(INDENT.len()));
        let line = lines.join(&format!("\n{INDENT}"));
        match passed {
            true => writeln!(out, "  {GREEN}✓{GREEN:#} {line}")?,
            false => writeln!(out, "  {RED}✗ {line}{RED:#}")?,
        }
    }
    Ok(())
}

/// A table without borders, with columns as wide as their content.
pub(crate) fn bare_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

pub(crate) fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
