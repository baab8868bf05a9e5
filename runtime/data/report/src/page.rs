//! The frame and the parts of every page: one stylesheet, one script, nothing from a network.
//!
//! Rust writes what needs no drawing, so that it can be read without scripts. `assets/chart.js` draws
//! every [`Chart`](crate::Chart) of a page from JSON inside it, with uPlot; `assets/report.js` draws runs.

use std::io::{self, Write};

use serde::Serialize;

use crate::limit::headroom_text;
use crate::text::{Escaped, json_in_html};

pub(crate) const UPLOT_JS: &str = include_str!("../assets/uPlot.iife.min.js");
pub(crate) const UPLOT_CSS: &str = include_str!("../assets/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("../assets/uPlot.LICENSE");
const CHART_JS: &str = include_str!("../assets/chart.js");
const REPORT_JS: &str = include_str!("../assets/report.js");
const PAGE_CSS: &str = include_str!("../assets/page.css");

/// Nothing is fetched, whatever a text of the page says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// What is good, bad, or worth a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Neither.
    #[default]
    Neutral,
    /// A limit is kept.
    Passed,
    /// A limit is broken.
    Failed,
    /// Worth a look.
    Warned,
}

impl Tone {
    /// Its class in the stylesheet.
    #[must_use]
    pub fn class(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Warned => "warned",
        }
    }

    /// That of something that holds or does not.
    #[must_use]
    pub fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

/// A number that answers the question of a page.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    /// What it is.
    pub name: String,
    /// The number, for people.
    pub value: String,
    /// What it is compared with, such as a limit.
    pub note: String,
    /// Share of the limit that is left.
    pub headroom: Option<f64>,
    /// Its colour.
    pub tone: Tone,
    /// The chart that shows it.
    pub chart: Option<String>,
}

/// What makes a page another than a report: a page that asks a server.
#[derive(Clone, Copy, Debug)]
pub struct LivePage<'a> {
    /// Rules of its own, after those of every page.
    pub style: &'a str,
    /// Its script, after that of the charts.
    pub script: &'a str,
    /// What it may ask, in the words of a Content-Security-Policy.
    pub policy: &'a str,
}

/// Writes a page. `body` is the part without scripts. `data` is the object that the script draws: its
/// `charts` are drawn into the element `charts`.
///
/// # Errors
/// If the writer fails.
pub fn write_page(
    out: &mut dyn Write,
    title: &str,
    data: &impl Serialize,
    body: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write_live_page(out, title, data, LivePage { style: "", script: REPORT_JS, policy: "" }, body)
}

/// Writes a page that asks a server: as [`write_page`], with a script of its own in place of that of reports.
///
/// # Errors
/// Those of the writer.
pub fn write_live_page(
    out: &mut dyn Write,
    title: &str,
    data: &impl Serialize,
    live: LivePage<'_>,
    body: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let LivePage { style, script, policy } = live;
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{} - vcr</title>\n\
         <style>{UPLOT_CSS}</style>\n<style>{PAGE_CSS}{style}</style>\n</head>\n<body>\n<main>\n",
        Escaped(title)
    )?;
    body(out)?;
    writeln!(out, "</main>")?;
    let data = serde_json::to_string(data)?;
    writeln!(out, "<script type=\"application/json\" id=\"data\">{}</script>", json_in_html(&data))?;
    // The licence asks for its text in every copy.
    writeln!(out, "<script>/*!\n{UPLOT_LICENSE}*/\n{UPLOT_JS}</script>")?;
    writeln!(out, "<script>\n{CHART_JS}{script}</script>\n</body>\n</html>")
}

/// Writes the title of a page, its verdict, and the reason in a sentence.
///
/// # Errors
/// Those of the writer.
pub fn write_banner(out: &mut dyn Write, title: &str, tone: Tone, verdict: &str, reason: &str) -> io::Result<()> {
    let class = tone.class();
    writeln!(out, "<header class=\"banner {class}\">\n<h1>{}</h1>", Escaped(title))?;
    writeln!(out, "<p class=\"verdict {class}\">{}</p>", Escaped(verdict))?;
    if !reason.is_empty() {
        writeln!(out, "<p class=\"claim\">{}</p>", Escaped(reason))?;
    }
    writeln!(out, "</header>")
}

/// Writes tiles. Those of a run that is not shown at first are hidden; `run` is its index.
///
/// # Errors
/// Those of the writer.
pub fn write_tiles(out: &mut dyn Write, tiles: &[Tile], run: Option<(usize, bool)>) -> io::Result<()> {
    let (run, hidden) = match run {
        Some((index, is_shown)) => (format!(" data-run=\"{index}\""), if is_shown { "" } else { " hidden" }),
        None => (String::new(), ""),
    };
    writeln!(out, "<ul class=\"tiles\"{run}{hidden}>")?;
    for tile in tiles {
        let Tile { name, value, note, headroom, tone, chart } = tile;
        write!(out, "<li class=\"tile {}\">", tone.class())?;
        match chart {
            Some(chart) => write!(out, "<a href=\"#{}\">{}</a>", Escaped(chart), Escaped(name))?,
            None => write!(out, "<span>{}</span>", Escaped(name))?,
        }
        write!(out, "<strong>{}</strong>", Escaped(value))?;
        write!(out, "<small>{}</small>", Escaped(note))?;
        if let Some(headroom) = headroom {
            write_headroom(out, *headroom)?;
        }
        writeln!(out, "</li>")?;
    }
    writeln!(out, "</ul>")
}

/// Writes a headroom as a bar: how much of the limit is used. A value beyond the limit fills it.
///
/// # Errors
/// Those of the writer.
pub fn write_headroom(out: &mut dyn Write, headroom: f64) -> io::Result<()> {
    let used = ((1.0 - headroom).clamp(0.0, 1.0) * 100.0).round();
    let class = if headroom < 0.0 { "failed" } else { "passed" };
    let text = headroom_text(headroom);
    write!(
        out,
        "<span class=\"headroom {class}\"><i role=\"img\" aria-label=\"headroom: {text}\"><b style=\"width:{used}%\"></b></i>{text}</span>"
    )
}
