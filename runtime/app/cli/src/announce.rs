//! Tells where a server listens.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;

/// Prints the address of a server to standard output for scripts, and logs it where the log goes elsewhere.
pub(crate) fn announce(line: &str, quiet: bool) {
    let mut out = io::stdout().lock();
    // The reader may have exited.
    _ = writeln!(out, "{line}").and_then(|()| out.flush());
    drop(out);
    if !quiet && !go_to_same_place(io::stdout().as_fd(), io::stderr().as_fd()) {
        tracing::info!("{line}");
    }
}

/// Whether both are the same terminal, pipe or file.
fn go_to_same_place(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let place = |output: BorrowedFd<'_>| {
        let metadata = File::from(output.try_clone_to_owned().ok()?).metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    place(one).is_some_and(|place_of_one| place(other) == Some(place_of_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_one_file_go_to_the_same_place() {
        let file = || tempfile::tempfile().expect("a file");
        let (one, other) = (file(), file());
        let again = one.try_clone().expect("a handle");
        assert!(go_to_same_place(one.as_fd(), again.as_fd()));
        assert!(!go_to_same_place(one.as_fd(), other.as_fd()));
    }
}
