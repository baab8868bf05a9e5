//! The frame and the parts of every page: one stylesheet, one script, nothing from a network.
//!
//! Rust writes everything that can be read without scripts. `assets/chart.js` draws every [`Chart`](crate::Chart)
//! from the JSON inside the page, with uPlot. `assets/report.js` draws the runs.

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

/// Forbids all requests to a network, whatever texts the page contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The judgement that a colour expresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// No judgement.
    #[default]
    Neutral,
    /// A limit holds.
    Passed,
    /// A limit is broken.
    Failed,
    /// A warning.
    Warned,
}

impl Tone {
    /// The tone's class in the stylesheet.
    #[must_use]
    pub fn class(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Warned => "warned",
        }
    }

    /// The tone of a condition that holds or fails.
    #[must_use]
    pub fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

/// A tile: one number with its name.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    /// Name of the number.
    pub name: String,
    /// The number, for people.
    pub value: String,
    /// A note, such as the limit.
    pub note: String,
    /// The share of the limit that is left.
    pub headroom: Option<f64>,
    /// The colour of the tile.
    pub tone: Tone,
    /// The id of the chart that shows the number.
    pub chart: Option<String>,
}

/// The additional parts of a page that queries a server.
#[derive(Clone, Copy, Debug)]
pub struct LivePage<'a> {
    /// The page's own stylesheet, in addition to the common stylesheet.
    pub style: &'a str,
    /// The page's own script, which runs after the script for charts.
    pub script: &'a str,
    /// The connections that the page may make, as directives of a Content-Security-Policy.
    pub policy: &'a str,
}

/// Writes a page. `body` writes the part that needs no scripts. `data` is the JSON object for the script, which
/// draws the object's `charts` into the element `charts`.
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

/// Writes a page that queries a server. As [`write_page`], but with the page's own script instead of the script for
/// reports.
///
/// # Errors
/// If the writer fails.
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
    // The licence must accompany every copy.
    writeln!(out, "<script>/*!\n{UPLOT_LICENSE}*/\n{UPLOT_JS}</script>")?;
    writeln!(out, "<script>\n{CHART_JS}{script}</script>\n</body>\n</html>")
}

/// Writes the title of a page, the verdict, and a sentence with the reason.
///
/// # Errors
/// If the writer fails.
pub fn write_banner(out: &mut dyn Write, title: &str, tone: Tone, verdict: &str, reason: &str) -> io::Result<()> {
    let class = tone.class();
    writeln!(out, "<header class=\"banner {class}\">\n<h1>{}</h1>", Escaped(title))?;
    writeln!(out, "<p class=\"verdict {class}\">{}</p>", Escaped(verdict))?;
    if !reason.is_empty() {
        writeln!(out, "<p class=\"claim\">{}</p>", Escaped(reason))?;
    }
    writeln!(out, "</header>")
}

/// Writes tiles. `run` is the index of the tiles' run, and whether the page shows this run first.
///
/// # Errors
/// If the writer fails.
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

/// Writes a headroom as a bar that shows the used share of the limit. The bar is full if the value is beyond the
/// limit.
///
/// # Errors
/// If the writer fails.
pub fn write_headroom(out: &mut dyn Write, headroom: f64) -> io::Result<()> {
    let used = ((1.0 - headroom).clamp(0.0, 1.0) * 100.0).round();
    let class = if headroom < 0.0 { "failed" } else { "passed" };
    let text = headroom_text(headroom);
    write!(
        out,
        "<span class=\"headroom {class}\"><i role=\"img\" aria-label=\"headroom: {text}\"><b style=\"width:{used}%\"></b></i>{text}</span>"
    )
}
