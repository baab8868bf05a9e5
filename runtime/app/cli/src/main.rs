//! The `vcr` binary.

use std::process::ExitCode;

/// A server takes memory on one thread and returns it on another, for which threads wait
/// for each other in the system's allocator: a fifth of the processor time of a request.
#[cfg(feature = "serve")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vcr::main()
}
