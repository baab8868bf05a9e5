//! `vcr inspect convert`: converts between formats.

use serde_json::json;
use vcr_trace::import::ImportError;
use vcr_trace::import::export::{Exporter, Target};

use super::args::ConvertArgs;
use super::output::{self, Output};
use super::{not_written, print_notes, read, refused};
use crate::exit::{Exit, printed};
use crate::terminal::text::counted;

pub(crate) fn convert(args: &ConvertArgs) -> Exit {
    let target = args.to.unwrap_or_else(|| Target::of(&args.output));
    let inputs = std::iter::once(&args.file).chain(args.input.files());
    let opened = output::open(&args.output, args.force, inputs).and_then(|output| Ok((output.handle()?, output)));
    let (file, output) = match opened {
        Ok(opened) => opened,
        Err(error) => return not_written(&error),
    };
    let mut exporter = Exporter::new(file, &args.output, target);
    let imported = match read(&args.file, &args.input, |line| exporter.add(line)) {
        Ok(imported) => imported,
        Err(ImportError::Write { source }) => return not_written(&output.error(source)),
        Err(error) => return refused(&error),
    };
    let is_stdout = output.is_stdout();
    let finished = exporter.finish().map_err(|error| output.error(error));
    let lost = match finished.and_then(|lost| output.commit().map(|()| lost)) {
        Ok(lost) => lost,
        Err(error) => return not_written(&error),
    };
    print_notes("lost", &lost);
    let (from, requests) = (imported.format, imported.requests);
    let account = if args.json {
        let notes = |notes: &[vcr_trace::import::Note]| {
            notes.iter().map(|note| json!({"what": note.what, "count": note.count})).collect::<Vec<_>>()
        };
        let account = json!({
            "from": from.name(), "to": target.name(), "output": args.output.display().to_string(),
            "requests": requests, "skipped": imported.skipped, "not_kept": notes(&imported.notes), "lost": notes(&lost),
        });
        format!("{account:#}")
    } else {
        format!("  {}: {}, {from} to {target}", args.output.display(), counted(requests, "request"))
    };
    printed(Output::print(is_stdout, &account), Exit::Passed)
}
