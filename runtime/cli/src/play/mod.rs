//! `vcr play`: engines in real time behind a real frontend.

pub(crate) mod args;
mod config;
mod control;
mod guests;
mod replay;

pub(crate) use guests::is_guest;
use vcr_control::Listeners;
use vcr_live::{LiveEngines, LiveError};

use crate::exit::{Exit, print_error};
use crate::service::{log, stop_on_signals, with_causes};
use args::PlayArgs;
use guests::LiveGuests;

/// Serves until a signal, or until an engine cannot go on.
pub(crate) fn play(args: &PlayArgs) -> Exit {
    log(args.process.quiet, None);
    let guests = LiveGuests::new(&args.guests);
    let prepared = config::live_config(args, &guests).and_then(|config| Ok((config, control::listen(&args.control)?)));
    let (config, listeners) = match prepared {
        Ok(prepared) => prepared,
        Err(unusable) => {
            print_error(&unusable.message, unusable.hint.as_deref());
            return Exit::BadInput;
        }
    };
    let replay = config.replay.clone();
    let served = serve(config, listeners.with_guests(guests.reader()), guests);
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

fn serve(config: vcr_live::LiveConfig, listeners: Listeners, guests: LiveGuests) -> Result<(), LiveError> {
    let engines = LiveEngines::start(config)?;
    let handle = engines.handle();
    stop_on_signals(move || handle.shut_down()).map_err(LiveError::Thread)?;
    let control = listeners.serve(engines.handle(), control::latency_reader(guests)).map_err(LiveError::Thread)?;
    let ended = engines.wait();
    // Until here whoever asked for the end gets his answer.
    drop(control);
    ended
}
