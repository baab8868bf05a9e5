//! Compilation with a time limit.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Processor time limit of one compilation. It counts the time of this process, so the load of the machine does not
/// matter. A Python guest takes about 25 s.
const TIME: Duration = Duration::from_secs(240);

const LOOK: Duration = Duration::from_millis(200);

/// Stack size of the compiling thread: the usual size of a main thread.
const STACK_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(crate) enum CompileError {
    /// The compiler's message.
    Compiler(wasmtime::Error),
    /// The compilation exceeded this limit.
    Slow { limit: Duration },
    /// The system could not start a thread.
    NoThread(io::Error),
}

/// Compiles a component on its own thread. The compiler cannot be stopped: on a timeout the thread keeps running
/// until the command ends with the error.
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
