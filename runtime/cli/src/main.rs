//! The `vcr` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    vcr::main()
}
