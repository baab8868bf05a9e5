//! Reads captures, in vcr's format and in vllm-vcr's.

use crate::capture::{CaptureLine, CaptureReader, CaptureWarningKind, ReadOptions};

use crate::import::output::Out;
use crate::import::{ImportError, ImportOptions};

pub(crate) fn rules(options: &ImportOptions) -> ReadOptions {
    ReadOptions { lenient: options.lenient }
}

pub(crate) fn read(mut reader: CaptureReader<'_>, out: &mut Out<'_>) -> Result<(), ImportError> {
    out.line(CaptureLine::Meta(Box::new(reader.meta().clone())))?;
    while let Some((_, line)) = reader.next_line()? {
        out.line(line)?;
    }
    let summary = reader.summary();
    out.broken_off = summary.broken_off;
    let mut first = None;
    for warning in &summary.warnings {
        match &warning.kind {
            CaptureWarningKind::Skipped { .. } => first = first.or_else(|| Some(warning.to_string())),
            CaptureWarningKind::BrokenOff { .. } => {}
            _ => out.tally.notes_of(&format!("lines with a warning: {warning}"), u64::from(warning.lines)),
        }
    }
    out.tally.skipped_elsewhere(summary.skipped_lines, first);
    Ok(())
}
