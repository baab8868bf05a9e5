//! `vcr inspect perfetto`: a capture as a trace to look at.

use std::fs::File;
use std::io::{BufWriter, Write};

use vcr_import::ImportError;
use vcr_import::export::perfetto::{PerfettoExport, PerfettoFormat};

use super::args::PerfettoArgs;
use super::{not_written, read, refused};
use crate::exit::{Exit, printed, tell};

pub(crate) fn perfetto(args: &PerfettoArgs) -> Exit {
    let is_json = args.output.extension().is_some_and(|suffix| suffix == "json");
    let guessed = if is_json { PerfettoFormat::Json } else { PerfettoFormat::Proto };
    let format = args.format.unwrap_or(guessed);
    let file = match File::create_new(&args.output) {
        Ok(file) => BufWriter::with_capacity(1 << 16, file),
        Err(error) => return not_written(&args.output, &error, false),
    };
    let mut export = match PerfettoExport::new(file, format) {
        Ok(export) => export,
        Err(error) => return not_written(&args.output, &error, true),
    };
    match read(&args.file, &args.input, |line| export.add(&line)) {
        Ok(_) => {}
        Err(ImportError::Write { source }) => return not_written(&args.output, &source, true),
        Err(error) => {
            drop(export);
            let _ = std::fs::remove_file(&args.output);
            return refused(&error);
        }
    }
    match export.finish() {
        Ok(0) => {}
        Ok(unplaced) => tell(format_args!("note: not shown: {unplaced} requests whose arrival nobody knows")),
        Err(error) => return not_written(&args.output, &error, true),
    }
    let shown = args.output.display();
    let written = writeln!(anstream::stdout(), "  {shown}: open it in https://ui.perfetto.dev");
    printed(written, Exit::Passed)
}
