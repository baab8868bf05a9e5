//! Early ends of a command: by a signal or by `--timeout`.
//!
//! A command with results to save registers for an orderly end. It then checks [`cause`] regularly, or gets a
//! callback. All other commands end immediately, and so does every command at the second signal. Drafts of files are
//! removed in all cases.

use std::io;
#[cfg(feature = "live")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::exit::{Exit, eprint_line};

/// The reason why a command ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Interrupt = 1,
    Terminate,
    Timeout,
}

impl Cause {
    /// Name in messages and results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Timeout => "--timeout",
        }
    }

    /// Exit code of a stopped command.
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

/// Starts the orderly end of the command.
type Stop = Box<dyn Fn() + Send>;
static IN_ORDER: Mutex<Option<Stop>> = Mutex::new(None);

fn in_order_slot() -> MutexGuard<'static, Option<Stop>> {
    IN_ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reason why the command must end now; none if it need not.
pub(crate) fn cause() -> Option<Cause> {
    let causes = [Cause::Interrupt, Cause::Terminate, Cause::Timeout];
    let cause = CAUSE.load(Ordering::Relaxed);
    causes.into_iter().find(|known| *known as u8 == cause)
}

/// While this value lives, the first signal does not end the process.
#[derive(Debug)]
pub(crate) struct InOrder(());

impl Drop for InOrder {
    fn drop(&mut self) {
        *in_order_slot() = None;
    }
}

/// Registers `stop` for the first signal. It must not block, and the command must end soon after. If a signal has
/// already arrived, `stop` is called now.
pub(crate) fn in_order(stop: impl Fn() + Send + 'static) -> InOrder {
    let mut slot = in_order_slot();
    if cause().is_some() {
        stop();
    }
    *slot = Some(Box::new(stop));
    InOrder(())
}

/// Like [`in_order`], for a service that may already serve before its start function returns. A signal that arrives
/// before the handle exists takes effect when it does.
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

/// A service that is starting.
#[cfg(feature = "live")]
pub(crate) struct Starting<H> {
    handle: Arc<OnceLock<H>>,
    stop: fn(&H),
}

#[cfg(feature = "live")]
impl<H> Starting<H> {
    /// Sets the handle of the service, and stops the service if a signal has arrived.
    pub(crate) fn started(self, handle: H) {
        let handle = self.handle.get_or_init(|| handle);
        if cause().is_some() {
            (self.stop)(handle);
        }
    }
}

/// Starts to handle signals.
pub(crate) fn watch() -> io::Result<()> {
    // Exceeding the file size limit becomes a write error instead of a signal.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            request(if signal == SIGINT { Cause::Interrupt } else { Cause::Terminate });
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

/// Sets a time limit that starts now.
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
        // The command is already ending and may take longer.
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
