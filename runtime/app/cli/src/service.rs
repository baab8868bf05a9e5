//! Shared by commands that run until a signal.

use std::io::{self, IsTerminal, Write};

use indicatif::MultiProgress;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Logs to standard error, above any progress shown there.
pub(crate) fn log(quiet: bool, progress: Option<MultiProgress>) {
    let level = if quiet { LevelFilter::ERROR } else { LevelFilter::INFO };
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let is_terminal = io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || LogWriter { progress: progress.clone() });
    log.with_ansi(is_terminal).with_target(false).init();
}

struct LogWriter {
    progress: Option<MultiProgress>,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.progress {
            Some(progress) => progress.suspend(|| io::stderr().write(bytes)),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Raises the limit of open files to the hard limit and returns it: engines need more sockets than the usual 1,024.
pub(crate) fn raise_limit_of_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    limit.current.unwrap_or(u64::MAX)
}

/// Disables transparent huge pages. With them the heaps of 64 idle engines would take 360 MB.
pub(crate) fn use_small_pages() {
    // A failure only costs memory.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// An error with its causes, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
