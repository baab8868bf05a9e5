//! `vcr man`: manual pages, generated from the declarations of the command line.
//!
//! By default each command has a page, such as `vcr-inspect-steps.1`. It has all options, including those shown only
//! by `--help-all`, and the examples and exit codes of the help. In Markdown all commands are on one page. Pages have
//! no date, so the same program always writes the same bytes.

pub(crate) mod args;
mod markdown;

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, roman};
use vcr_base::output::Outputs;

use crate::exit::{Exit, printed};
use crate::refusal::Refusal;
use args::{Format, ManArgs};

struct Page {
    name: String,
    text: Vec<u8>,
}

pub(crate) fn man(args: &ManArgs) -> Exit {
    match pages(args.format)
        .map_err(|error| Refusal::input(format!("cannot write pages: {error}")))
        .and_then(|pages| write(args, &pages))
    {
        Ok(count) => {
            let line = format!("wrote {count} pages to {}\n", args.out.display());
            printed(io::stdout().write_all(line.as_bytes()), Exit::Passed)
        }
        Err(refusal) => refusal.print(),
    }
}

/// Writes the pages, all or none, and returns their number.
fn write(args: &ManArgs, pages: &[Page]) -> Result<usize, Refusal> {
    let mut rule = Outputs::new(args.force);
    let mut files = Vec::with_capacity(pages.len());
    for page in pages {
        files.push(rule.create(&args.out.join(&page.name))?);
    }
    for (file, page) in files.into_iter().zip(pages) {
        file.write_with(|out| out.write_all(&page.text))?;
    }
    Ok(pages.len())
}

fn pages(format: Format) -> io::Result<Vec<Page>> {
    let mut command = crate::args::command().disable_help_subcommand(true);
    command.build();
    if format == Format::Markdown {
        return Ok(vec![Page { name: "commands.md".to_owned(), text: markdown::page(&command).into_bytes() }]);
    }
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(page(command)?);
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| add(below, pages))
}

fn page(command: &Command) -> io::Result<Page> {
    // A manual page has all options, even those hidden in the short help.
    let mut command = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let usage = command.render_usage().to_string();
    let command = command.override_usage(usage.trim_start_matches("Usage:").trim().to_owned());
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let sections = [command.get_before_help(), command.get_after_help(), command.get_after_long_help()];
    let sections: Vec<String> = sections.into_iter().flatten().map(ToString::to_string).collect();
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone()).title(name.to_uppercase()).source(format!("vcr {version}")).manual("vcr");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    preformatted(&sections.join("\n\n")).to_writer(&mut text)?;
    Ok(Page { name: format!("{name}.1"), text })
}

/// Formats examples, exit codes and notes with their line breaks. A block with a heading such as `Examples:` becomes
/// a section; other blocks become notes.
fn preformatted(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut in_notes = false;
    for block in text.split("\n\n").map(|block| block.trim_matches('\n')).filter(|block| !block.is_empty()) {
        let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
        let heading = first.strip_suffix(':').filter(|heading| heading.split(' ').count() <= 2);
        let lines = match heading {
            Some(heading) => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                rest
            }
            None => {
                roff.control(if in_notes { "PP" } else { "SH" }, if in_notes { None } else { Some("NOTES") });
                block
            }
        };
        in_notes = heading.is_none();
        roff.control("nf", []);
        lines.lines().for_each(|line| {
            roff.text([roman(line)]);
        });
        roff.control("fi", []);
    }
    roff
}
