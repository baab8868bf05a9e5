//! Prints searches.

use std::io::{self, Write};

use vcr_scenario::search::{Goal, SearchReport};

use crate::terminal::layout::write_wrapped;
use crate::terminal::style::BOLD;
use crate::terminal::text::{counted, printable};

/// Writes the searches that a script has made.
pub(crate) fn write(out: &mut dyn Write, searches: &[SearchReport], width: usize) -> io::Result<()> {
    if searches.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n  {BOLD}SEARCHES{BOLD:#}")?;
    searches.iter().try_for_each(|search| write_wrapped(out, "  ", &printable(&sentence(search, "")), width))
}

/// Result and cost of a search, as a sentence. `unit` follows its values.
pub(crate) fn sentence(search: &SearchReport, unit: &str) -> String {
    let SearchReport { name, goal, from, to, tolerance, bracket, runs, probes } = search;
    let (word, easy, hard) = match goal {
        Goal::Highest => ("highest", from, to),
        Goal::Lowest => ("lowest", to, from),
    };
    let found = match (bracket.kept, bracket.broken) {
        (Some(kept), Some(broken)) => {
            format!("the {word} {name} that keeps all assertions is {kept}{unit}; {broken}{unit} does not")
        }
        (Some(kept), None) if kept == *hard => {
            format!("even {name} {kept}{unit} keeps all assertions: the limit is beyond the range {from}..{to}{unit}")
        }
        (Some(kept), None) => format!("{name} {kept}{unit} keeps all assertions; nothing else was tried"),
        (None, Some(_)) => format!("not even {name} {easy}{unit} keeps all assertions"),
        (None, None) => format!("no {name} was tried"),
    };
    let tolerance = if bracket.kept.is_some() && bracket.broken.is_some() {
        format!(", at most {tolerance}{unit} apart")
    } else {
        String::new()
    };
    let (tried, runs) = (counted(probes.len(), "value"), counted(*runs, "run"));
    format!("{found} ({tried} tried, {runs}{tolerance})")
}
