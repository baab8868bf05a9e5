//! The `vcr` binary.

use std::process::ExitCode;

/// A server allocates memory on one thread and frees it on another. With the system's allocator, contention between
/// threads takes a fifth of the processor time of a request.
#[cfg(feature = "serve")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vcr::main()
}
