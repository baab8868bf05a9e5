//! Reads traces for replays from files of all formats. A file that is not a trace is converted to a capture first.

use std::path::Path;

use crate::{Format, Strictness, Trace, TraceError, TraceOptions, TraceWarning, WarningKind, read_files};

use crate::import::{ImportError, ImportOptions, import};

/// Reads a trace from its files, as [`crate::read_files`] does. Also reads one file or folder of any other format.
///
/// # Errors
/// If a file cannot be read or is invalid.
pub fn read_trace(paths: &[impl AsRef<Path>], options: &TraceOptions) -> Result<Trace, ImportError> {
    match read_files(paths, options) {
        Err(TraceError::NotATrace { name, format }) if paths.len() == 1 && can_be_read_again(paths[0].as_ref()) => {
            read_recorded(paths[0].as_ref(), &name, format, options)
        }
        read => Ok(read?),
    }
}

fn can_be_read_again(path: &Path) -> bool {
    path.is_dir() || vcr_base::input::is_regular(path)
}

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
    let mut trace = Trace::read(&capture[..], name, Format::Capture, options)?;
    trace.warnings.extend(imported.notes.into_iter().map(|note| TraceWarning {
        kind: WarningKind::Capture(note.sentence().into()),
        first_line: 1,
        rows: u32::try_from(note.count).unwrap_or(u32::MAX),
    }));
    Ok(trace)
}
