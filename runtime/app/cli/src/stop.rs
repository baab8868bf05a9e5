//! How a command ends before its work is done: by a signal, or by `--timeout`.
//!
//! A command with results to lose asks for an orderly end; it then checks [`cause`] occasionally,
//! or is notified. Any other ends at once, and so does every command at the second signal. Drafts
//! of files are removed in each case.

use std::io;
#[cfg(feature = "live")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::exit::{Exit, eprint_line};

/// Why a command ends before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Interrupt = 1,
    Terminate,
    Timeout,
}

impl Cause {
    /// Its name, in messages and in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Timeout => "--timeout",
        }
    }

    /// Exit code of a command that was stopped.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate => Exit::Terminated,
            Self::Timeout => Exit::TimedOut,
        }
    }
}

/// The first cause, as a number; 0 for none.
static CAUSE: AtomicU8 = AtomicU8::new(0);

/// Ends the command in order, while it can be done.
type Stop = Box<dyn Fn() + Send>;
static IN_ORDER: Mutex<Option<Stop>> = Mutex::new(None);

fn in_order_slot() -> MutexGuard<'static, Option<Stop>> {
    IN_ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why the command is to end now, if it is.
pub(crate) fn cause() -> Option<Cause> {
    let causes = [Cause::Interrupt, Cause::Terminate, Cause::Timeout];
    let cause = CAUSE.load(Ordering::Relaxed);
    causes.into_iter().find(|known| *known as u8 == cause)
}

/// While this lives, the first signal does not end the process.
#[derive(Debug)]
pub(crate) struct InOrder(());

impl Drop for InOrder {
    fn drop(&mut self) {
        *in_order_slot() = None;
    }
}

/// From now on the first signal calls `stop`, which must not wait, and the command
/// ends by itself soon after. If there was one already, it is called now.
pub(crate) fn in_order(stop: impl Fn() + Send + 'static) -> InOrder {
    let mut slot = in_order_slot();
    if cause().is_some() {
        stop();
    }
    *slot = Some(Box::new(stop));
    InOrder(())
}

/// As [`in_order`], for a service that may serve before its start returns: the first signal waits
/// for the handle, and then calls `stop` with it.
#[cfg(feature = "live")]
pub(crate) fn in_order_from_start<H: Send + Sync + 'static>(stop: fn(&H)) -> (InOrder, Starting<H>) {
    let handle: Arc<OnceLock<H>> = Arc::default();
    let of_signal = Arc::clone(&handle);
    let in_order = in_order(move || {
        if let Some(handle) = of_signal.get() {
            stop(handle);
        }
    });
    (in_order, Starting { handle, stop })
}

/// A service that starts.
#[cfg(feature = "live")]
pub(crate) struct Starting<H> {
    handle: Arc<OnceLock<H>>,
    stop: fn(&H),
}

#[cfg(feature = "live")]
impl<H> Starting<H> {
    /// Hands over the handle of the service; stops it if a signal has arrived.
    pub(crate) fn started(self, handle: H) {
        let handle = self.handle.get_or_init(|| handle);
        if cause().is_some() {
            (self.stop)(handle);
        }
    }
}

/// Begins to watch for signals.
pub(crate) fn watch() -> io::Result<()> {
    // Writing beyond a limit of file sizes becomes an error of the writer.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            request(if signal == SIGINT { Cause::Interrupt } else { Cause::Terminate });
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

/// Limits the command's time from now on.
pub(crate) fn limit(time: Duration) -> io::Result<()> {
    let end = move || {
        std::thread::sleep(time);
        request(Cause::Timeout);
    };
    std::thread::Builder::new().name("timeout".to_owned()).spawn(end).map(drop)
}

fn request(cause: Cause) {
    let slot = in_order_slot();
    let is_first = CAUSE.compare_exchange(0, cause as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    match &*slot {
        Some(stop) if is_first => stop(),
        // It is already ending, and may take its time.
        Some(_) if cause == Cause::Timeout => {}
        _ => end_now(cause),
    }
}

fn end_now(cause: Cause) -> ! {
    let removed = vcr_base::output::remove_drafts();
    let files = if removed > 0 { "; unfinished files were removed" } else { "" };
    eprint_line(format_args!("stopped by {}{files}", cause.name()));
    std::process::exit(cause.exit() as i32)
}
