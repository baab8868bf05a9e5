//! The `vcr` binary.

use std::process::ExitCode;

/// A server allocates memory on one thread and frees it on another, so threads contend in the
/// system's allocator: a fifth of the processor time of a request.
#[cfg(feature = "serve")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vcr::main()
}
