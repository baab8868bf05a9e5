//! The output of conversions: a file, or standard output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use vcr_base::output::{OutputError, OutputFile, Outputs};

use crate::exit::eprint_line;

/// Stands for standard output.
const STDOUT: &str = "-";

pub(super) struct Output {
    path: PathBuf,
    /// The file; none for standard output.
    file: Option<OutputFile>,
}

/// Opens `path`, which must not be one of the inputs.
pub(super) fn open<'a>(
    path: &Path,
    force: bool,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<Output, OutputError> {
    let mut outputs = Outputs::new(force);
    for input in inputs {
        outputs.reads(input)?;
    }
    let file = (path != Path::new(STDOUT)).then(|| outputs.create(path)).transpose()?;
    Ok(Output { path: path.to_owned(), file })
}

impl Output {
    /// A handle for writing.
    pub(super) fn handle(&self) -> Result<File, OutputError> {
        match &self.file {
            Some(file) => file.handle(),
            None => io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(|error| self.error(error)),
        }
    }

    /// The error of a failed write.
    pub(super) fn error(&self, source: io::Error) -> OutputError {
        OutputError::Write { path: self.path.clone(), source }
    }

    /// Gives the file its final name.
    pub(super) fn commit(self) -> Result<(), OutputError> {
        self.file.map_or(Ok(()), OutputFile::commit)
    }

    /// Prints a line about the output; to standard error if the output is standard output.
    pub(super) fn print(is_stdout: bool, line: &str) -> io::Result<()> {
        if is_stdout {
            eprint_line(format_args!("{line}"));
            return Ok(());
        }
        writeln!(anstream::stdout(), "{line}")
    }

    pub(super) fn is_stdout(&self) -> bool {
        self.file.is_none()
    }
}
