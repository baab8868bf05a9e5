//! `vcr play`: runs engines in real time behind a real frontend.

pub(crate) mod args;
pub(crate) mod boards;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod engine;
pub(crate) mod guests;
mod kv_shape;
mod latency;
mod nixl;
#[cfg(feature = "serve")]
mod page;
#[cfg(not(feature = "serve"))]
#[path = "no_page.rs"]
mod page;
pub(crate) mod playback;
mod rendezvous;
mod timing;
mod transfer;
pub(crate) mod transfer_tls;
pub(crate) mod unusable;

use vcr_live::control::Listeners;
use vcr_live::{EnginesHandle, LiveEngines, LiveError};

use crate::exit::{Exit, print_error};
use crate::service::{log, with_causes};
use crate::stop::{self, Cause};
use args::PlayArgs;
use guests::LiveGuests;

pub(crate) fn play(args: &PlayArgs) -> Exit {
    let live = &args.live;
    log(live.process.quiet, None);
    let guests = LiveGuests::new(&live.guests);
    let prepared = config::play_config(args, &guests).and_then(|mut config| {
        let report = playback::report_file(&live.playback)?;
        let page = page::prepare(live, &mut config)?;
        Ok((config, control::listen(&live.control, boards::gpus(live, None)?)?, page, report))
    });
    let (config, listeners, page, report) = match prepared {
        Ok(prepared) => prepared,
        Err(unusable) => {
            print_error(&unusable.message, unusable.hint.as_deref());
            return Exit::BadInput;
        }
    };
    let capture = config.playback.clone();
    let served = serve(config, listeners.with_guests(guests.reader()), page, guests);
    let played_back = capture.map_or(Ok(Exit::Passed), |settings| playback::finish(report, &settings.playback));
    ended(served, played_back)
}

/// The exit of a serving command after its playback report.
pub(crate) fn ended(served: Result<(), LiveError>, played_back: Result<Exit, unusable::Unusable>) -> Exit {
    match served {
        Ok(()) => match played_back {
            Ok(Exit::Passed) if stop::cause() == Some(Cause::Timeout) => Exit::TimedOut,
            Ok(exit) => exit,
            Err(unusable) => {
                print_error(&unusable.message, unusable.hint.as_deref());
                Exit::BadInput
            }
        },
        Err(error) => {
            print_error(&with_causes(&error), hint(&error));
            match error {
                // Errors of addresses are user errors.
                LiveError::Link(_)
                | LiveError::DataParallelSize { .. }
                | LiveError::Arena(_)
                | LiveError::Transfer(_) => Exit::BadInput,
                _ => Exit::Fault,
            }
        }
    }
}

fn hint(error: &LiveError) -> Option<&'static str> {
    match error {
        LiveError::Link(error) if error.is_limit_of_files() => Some(
            "start fewer engines in this process (--data-parallel-size, --data-parallel-start-rank), or raise its limit of \
             open files (ulimit -n)",
        ),
        LiveError::DataParallelSize { .. } => Some("give --data-parallel-size as the frontend has it"),
        LiveError::Arena(_) => Some("give smaller blocks (--kv-block-bytes), or fewer (--num-gpu-blocks)"),
        LiveError::Transfer(_) => Some("see --kv-transfer, --kv-transfer-listen and --side-channel-port"),
        LiveError::Thread(_) => Some("start fewer engines in this process (--data-parallel-size)"),
        _ => None,
    }
}

fn serve(
    config: vcr_live::LiveConfig,
    listeners: Listeners,
    page: Option<page::Prepared>,
    guests: LiveGuests,
) -> Result<(), LiveError> {
    let (_in_order, starting) = stop::in_order_from_start(EnginesHandle::shut_down);
    let engines = LiveEngines::start(config)?;
    starting.started(engines.handle());
    let latency = control::latency_reader(guests);
    let control = page::serve(page, listeners, &engines.handle(), &latency)
        .and_then(|(listeners, page)| Ok((listeners.serve(engines.handle(), latency)?, page)))
        .map_err(LiveError::Thread)
        .inspect_err(|_| engines.handle().shut_down());
    let ended = engines.wait();
    // Waits until the caller that asked for the shutdown has its answer.
    drop(control?);
    ended
}
