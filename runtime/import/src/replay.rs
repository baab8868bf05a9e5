//! Traces for replays, from everything that tells when requests arrived: those of `vcr-trace`, and
//! results of load generators, which become captures first.

use std::path::Path;

use vcr_trace::{Strictness, Trace, TraceError, TraceFormat, TraceOptions, TraceWarning, WarningKind, read_files};

use crate::{Format, ImportError, ImportOptions, import, input};

/// Formats whose files say when requests arrived, and are no traces.
const RECORDED: [Format; 5] =
    [Format::VllmBench, Format::SglangBench, Format::Aiperf, Format::InferencePerf, Format::Guidellm];

/// Reads a trace from its files, as [`vcr_trace::read_files`] does, or from one result of a load
/// generator.
///
/// # Errors
/// Those of the reader.
pub fn read_trace(paths: &[impl AsRef<Path>], options: &TraceOptions) -> Result<Trace, ImportError> {
    let unknown = match read_files(paths, options) {
        Err(error @ TraceError::UnknownFormat { .. }) if paths.len() == 1 => error,
        read => return Ok(read?),
    };
    let path = paths[0].as_ref();
    let name = path.display().to_string();
    if !vcr_input::is_regular(path) {
        return Err(unknown.into());
    }
    let (start, _) = input::peek(input::open(path)?, &name)?;
    match Format::detect(&name, &start) {
        Ok(format) if RECORDED.contains(&format) => read_recorded(path, &name, format, options),
        _ => Err(unknown.into()),
    }
}

/// Makes a capture of a file, and reads that.
fn read_recorded(path: &Path, name: &str, format: Format, options: &TraceOptions) -> Result<Trace, ImportError> {
    let rules = ImportOptions {
        format: Some(format),
        lenient: options.strictness == Strictness::Lenient,
        block_size_tokens: options.block_size_tokens,
        ..ImportOptions::default()
    };
    let mut capture = Vec::new();
    let imported = import(path, &rules, &mut |line| {
        serde_json::to_writer(&mut capture, &line)?;
        capture.push(b'\n');
        Ok(())
    })?;
    let mut trace = Trace::read(&capture[..], name, TraceFormat::Capture, options)?;
    trace.warnings.extend(imported.notes.into_iter().map(|note| TraceWarning {
        kind: WarningKind::Capture(format!("{} {}", note.count, note.what).into()),
        first_line: 1,
        rows: u32::try_from(note.count).unwrap_or(u32::MAX),
    }));
    Ok(trace)
}
