//! Compilation within a limit of time.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Processor time limit of one compilation: the process's time, so the machine's load does not
/// matter. A guest in Python takes about 25 s.
const TIME: Duration = Duration::from_secs(240);

/// Interval at which the used processor time is checked.
const LOOK: Duration = Duration::from_millis(200);

/// Stack of the thread that compiles: the system's usual size for a program.
const STACK_BYTES: usize = 8 << 20;

/// Why there is no compiled component.
#[derive(Debug)]
pub(crate) enum CompileError {
    /// The compiler's message.
    Compiler(wasmtime::Error),
    /// It took longer than this.
    Slow { limit: Duration },
    /// The system started no thread.
    NoThread(io::Error),
}

/// Compiles a component, on a thread that is left alone when it takes too long: nothing can stop the
/// compiler, and the error ends the command that needs the guest.
pub(crate) fn compiled(engine: &Engine, bytes: &[u8]) -> Result<Component, CompileError> {
    within(TIME, engine, bytes)
}

fn within(limit: Duration, engine: &Engine, bytes: &[u8]) -> Result<Component, CompileError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let (engine, bytes) = (engine.clone(), bytes.to_vec());
    let compile = move || {
        _ = sender.send(Component::from_binary(&engine, &bytes));
    };
    let thread = std::thread::Builder::new().name("compile".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(compile).map_err(CompileError::NoThread)?;
    let start = processor_time();
    loop {
        match receiver.recv_timeout(LOOK.min(limit)) {
            Ok(compiled) => return compiled.map_err(CompileError::Compiler),
            Err(RecvTimeoutError::Timeout) if processor_time().saturating_sub(start) < limit => {}
            Err(RecvTimeoutError::Timeout) => return Err(CompileError::Slow { limit }),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CompileError::Compiler(wasmtime::Error::msg("the compiler failed without a message")));
            }
        }
    }
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compilation_that_takes_too_long_is_given_up() {
        let text = format!("(component (core module {}))", "(func)".repeat(5000));
        let bytes = wat::parse_str(text).expect("the text is WebAssembly");
        let engine = Engine::default();
        assert!(matches!(within(Duration::ZERO, &engine, &bytes), Err(CompileError::Slow { .. })));
        assert!(compiled(&engine, &bytes).is_ok());
        assert!(matches!(compiled(&engine, b"\0asm"), Err(CompileError::Compiler(_))));
    }
}
