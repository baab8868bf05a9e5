//! What commands have in common that go on until a signal.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::MultiProgress;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Logs to standard error, above the progress that may be shown there.
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

/// The first signal ends the work in order, the second one at once.
pub(crate) fn stop_on_signals(stop: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let asked = Arc::new(AtomicBool::new(false));
    let wait = move || {
        for signal in signals.forever() {
            if asked.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
            stop();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}

/// An error and what caused it, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
