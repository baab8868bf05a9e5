//! `vcr inspect perfetto`: converts a capture to a Perfetto trace.

use std::io::BufWriter;

use vcr_trace::import::ImportError;
use vcr_trace::import::export::perfetto::{PerfettoExport, PerfettoFormat};

use super::args::PerfettoArgs;
use super::output::{self, Output};
use super::{not_written, read, refused};
use crate::exit::{Exit, eprint_line, printed};
use crate::terminal::text::counted;

pub(crate) fn perfetto(args: &PerfettoArgs) -> Exit {
    let is_json = args.output.extension().is_some_and(|suffix| suffix == "json");
    let guessed = if is_json { PerfettoFormat::Json } else { PerfettoFormat::Proto };
    let format = args.format.unwrap_or(guessed);
    let inputs = std::iter::once(&args.file).chain(args.input.files());
    let opened = output::open(&args.output, args.force, inputs).and_then(|output| Ok((output.handle()?, output)));
    let (file, output) = match opened {
        Ok(opened) => opened,
        Err(error) => return not_written(&error),
    };
    let is_stdout = output.is_stdout();
    let mut export = match PerfettoExport::new(BufWriter::with_capacity(1 << 16, file), format) {
        Ok(export) => export,
        Err(error) => return not_written(&output.error(error)),
    };
    match read(&args.file, &args.input, |line| export.add(&line)) {
        Ok(_) => {}
        Err(ImportError::Write { source }) => return not_written(&output.error(source)),
        Err(error) => return refused(&error),
    }
    let finished = export.finish().map_err(|error| output.error(error));
    match finished.and_then(|unplaced| output.commit().map(|()| unplaced)) {
        Ok(0) => {}
        Ok(unplaced) => {
            eprint_line(format_args!("note: not shown: {} of unknown arrival", counted(unplaced, "request")))
        }
        Err(error) => return not_written(&error),
    }
    let shown = args.output.display();
    printed(Output::print(is_stdout, &format!("  {shown}: open it in https://ui.perfetto.dev")), Exit::Passed)
}
