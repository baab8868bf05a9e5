//! Opens files, and reads small files completely.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use crate::units::format_bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::input::remote;

/// Waiting time for the writer of a FIFO before the user is notified.
const SILENT_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

static NOTICE: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the function that shows notices to the user, once for the process. Without it no notices are shown.
pub fn on_notice(show: fn(&str)) {
    // Only the first function is kept.
    let _ = NOTICE.set(show);
}

/// Shows a notice to the waiting user, if [`on_notice`] was called.
pub fn notice(text: &str) {
    if let Some(show) = NOTICE.get() {
        show(text);
    }
}

/// Opens a regular file or a pipe for reading. For a URL, its local copy is opened ([`remote`]).
///
/// Waits until a FIFO has a writer, with a notice after a second.
///
/// # Errors
/// If the file cannot be opened, with [`ErrorKind::InvalidInput`] or [`ErrorKind::IsADirectory`] if it is
/// neither a regular file nor a pipe.
pub fn open(path: &Path) -> io::Result<File> {
    let path = &*remote::local(path)?;
    let kind = fs::metadata(path)?.file_type();
    if kind.is_fifo() {
        return open_fifo(path);
    }
    if let Some((error, name)) = irregular(kind) {
        return Err(io::Error::new(error, format!("it is {name}; expected a regular file or a pipe")));
    }
    File::open(path)
}

/// Whether `path` is a regular file, which can be opened again and again.
#[must_use]
pub fn is_regular(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// The kind of a file that is neither a regular file nor a FIFO.
fn irregular(kind: FileType) -> Option<(ErrorKind, &'static str)> {
    if kind.is_dir() {
        Some((ErrorKind::IsADirectory, "a directory"))
    } else if kind.is_char_device() {
        Some((ErrorKind::InvalidInput, "a character device"))
    } else if kind.is_block_device() {
        Some((ErrorKind::InvalidInput, "a block device"))
    } else if kind.is_socket() {
        Some((ErrorKind::InvalidInput, "a socket"))
    } else {
        None
    }
}

fn open_fifo(path: &Path) -> io::Result<File> {
    let no_block = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(no_block).open(path)?;
    let is_ready = |timeout: Option<&Timespec>| loop {
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error)),
        }
    };
    if !is_ready(Some(&SILENT_WAIT))? {
        notice(&format!("waiting for a writer of FIFO `{}`", path.display()));
        is_ready(None)?;
    }
    // From here on, reading an empty pipe blocks while it has a writer.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Reads a whole file of at most `max_bytes`.
///
/// # Errors
/// If the file cannot be opened or read, or is larger ([`ErrorKind::FileTooLarge`]).
pub fn read_bytes(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let text = format!("it is larger than {}, which is the limit for such a file", format_bytes(max_bytes as f64));
        return Err(io::Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Reads a whole file of UTF-8 of at most `max_bytes`.
///
/// # Errors
/// If [`read_bytes`] fails, or the file is not UTF-8 ([`ErrorKind::InvalidData`]).
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let bytes = read_bytes(path, max_bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("it is not valid UTF-8 (at byte {at})"))
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn text(result: io::Result<String>) -> String {
        result.unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        fs::write(&path, "12345678").expect("it is writable");
        assert_eq!(text(read_text(&path, 8)), "12345678");
        assert_eq!(text(read_text(&path, 7)), "it is larger than 7 B, which is the limit for such a file");
        fs::write(&path, b"ab\xff").expect("it is writable");
        assert_eq!(text(read_text(&path, 8)), "it is not valid UTF-8 (at byte 2)");
    }

    #[test]
    fn devices_and_directories_are_refused_by_name() {
        let zero = read_text(Path::new("/dev/zero"), 8);
        assert_eq!(text(zero), "it is a character device; expected a regular file or a pipe");
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(text(read_text(folder.path(), 8)), "it is a directory; expected a regular file or a pipe");
        assert_eq!(open(&folder.path().join("none")).expect_err("nothing").kind(), ErrorKind::NotFound);
    }

    /// Covers a shell's `<(command)` and a writer that comes later.
    #[test]
    fn a_fifo_gives_what_is_written_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a FIFO");
        let writer = {
            let path = path.clone();
            thread::spawn(move || fs::write(path, "hello"))
        };
        assert_eq!(text(read_text(&path, 5)), "hello");
        writer.join().expect("it ends").expect("it can write");
    }
}
