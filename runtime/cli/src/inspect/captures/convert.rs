//! `vcr inspect convert`: from any format to another.

use std::io::Write;

use serde_json::json;
use vcr_import::ImportError;
use vcr_import::export::{Exporter, Target};

use super::args::ConvertArgs;
use super::{not_written, read, refused, tell_notes};
use crate::exit::{Exit, printed};
use crate::inspect::text::count;

pub(crate) fn convert(args: &ConvertArgs) -> Exit {
    let target = args.to.unwrap_or_else(|| Target::of(&args.output));
    let mut exporter = Exporter::new(&args.output, target);
    let imported = match read(&args.file, &args.input, |line| exporter.add(line)) {
        Ok(imported) => imported,
        Err(ImportError::Write { source }) => return not_written(&args.output, &source, exporter.has_begun()),
        Err(error) => {
            if exporter.has_begun() {
                // The input is at fault; a half file would only mislead.
                drop(exporter);
                let _ = std::fs::remove_file(&args.output);
            }
            return refused(&error);
        }
    };
    let lost = match exporter.finish() {
        Ok(lost) => lost,
        Err(error) => return not_written(&args.output, &error, true),
    };
    tell_notes("lost", &lost);
    let mut out = anstream::stdout().lock();
    let (from, requests) = (imported.format, imported.requests);
    let written = if args.json {
        let notes = |notes: &[vcr_import::Note]| {
            notes.iter().map(|note| json!({"what": note.what, "count": note.count})).collect::<Vec<_>>()
        };
        let account = json!({
            "from": from.name(), "to": target.name(), "output": args.output.display().to_string(),
            "requests": requests, "skipped": imported.skipped, "not_kept": notes(&imported.notes), "lost": notes(&lost),
        });
        writeln!(out, "{account:#}")
    } else {
        writeln!(out, "  {}: {}, {from} to {target}", args.output.display(), count(requests, "request"))
    };
    printed(written, Exit::Passed)
}
