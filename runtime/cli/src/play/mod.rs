//! `vcr play`: engines in real time behind a real frontend.

pub(crate) mod args;
mod config;
mod control;
mod replay;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use vcr_control::Listeners;
use vcr_live::{EnginesHandle, LiveEngines, LiveError};

use crate::exit::{Exit, print_error};
use args::PlayArgs;

/// Serves until a signal, or until an engine cannot go on.
pub(crate) fn play(args: &PlayArgs) -> Exit {
    log(args.process.quiet);
    let prepared = config::live_config(args).and_then(|config| Ok((config, control::listen(&args.control)?)));
    let (config, listeners) = match prepared {
        Ok(prepared) => prepared,
        Err(unusable) => {
            print_error(&unusable.message, unusable.hint.as_deref());
            return Exit::BadInput;
        }
    };
    let replay = config.replay.clone();
    let served = serve(config, listeners);
    let replayed = replay.map_or(Ok(Exit::Passed), |settings| replay::finish(&args.replay, &settings.replay));
    match served {
        Ok(()) => replayed.unwrap_or_else(|unusable| {
            print_error(&unusable.message, unusable.hint.as_deref());
            Exit::BadInput
        }),
        Err(error) => {
            print_error(&with_causes(&error), None);
            match error {
                // An address that cannot be used was given by the user.
                LiveError::Link(_) => Exit::BadInput,
                _ => Exit::Fault,
            }
        }
    }
}

fn serve(config: vcr_live::LiveConfig, listeners: Listeners) -> Result<(), LiveError> {
    let engines = LiveEngines::start(config)?;
    stop_on_signals(engines.handle())?;
    let control = listeners.serve(engines.handle(), control::latency_reader()).map_err(LiveError::Thread)?;
    let ended = engines.wait();
    // Until here whoever asked for the end gets his answer.
    drop(control);
    ended
}

/// The first signal ends the engines as vLLM's do, the second one at once.
fn stop_on_signals(handle: EnginesHandle) -> Result<(), LiveError> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(LiveError::Thread)?;
    let asked = Arc::new(AtomicBool::new(false));
    let wait = move || {
        for signal in signals.forever() {
            if asked.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
            handle.shut_down();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(LiveError::Thread)?;
    Ok(())
}

/// Logs to standard error.
fn log(quiet: bool) {
    let level = if quiet { LevelFilter::ERROR } else { LevelFilter::INFO };
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let is_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(is_terminal).with_target(false).init();
}

/// An error and what caused it, on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
