//! Parsers of option values that several commands share.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;

/// Whether input URLs are currently not fetched.
static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// Parses words without fetching the URLs in them.
pub(crate) fn look<T>(read: impl FnOnce() -> T) -> T {
    IS_LOOKING.store(true, Ordering::Relaxed);
    let looked = read();
    IS_LOOKING.store(false, Ordering::Relaxed);
    looked
}

/// The path of an input, or of the copy of a URL.
///
/// # Errors
/// When it cannot be fetched. The text omits the URL, which may contain a secret.
pub(crate) fn input(path: &Path) -> Result<PathBuf, String> {
    if IS_LOOKING.load(Ordering::Relaxed) {
        return Ok(path.to_owned());
    }
    let local = vcr_base::input::remote::local(path).map_err(|error| vcr_base::input::remote::refusal(&error))?;
    Ok(local.into_owned())
}

/// Parses an input path; a URL becomes the path of its copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputPath;

impl TypedValueParser for InputPath {
    type Value = PathBuf;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<PathBuf, clap::Error> {
        if value.is_empty() {
            let text = "invalid path: expected a name, got nothing";
            return Err(clap::Error::raw(ErrorKind::InvalidValue, text).with_cmd(command));
        }
        let refused = |reason| clap::Error::raw(ErrorKind::ValueValidation, format!("{reason}\n")).with_cmd(command);
        input(Path::new(value)).map_err(refused)
    }
}

/// Parses a duration greater than 0.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match vcr_base::units::duration_ns(text) {
        Ok(0) => Err("expected more than 0".to_owned()),
        Ok(ns) => Ok(Duration::from_nanos(ns)),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a duration greater than 0, in nanoseconds.
pub(crate) fn time_limit(text: &str) -> Result<u64, String> {
    Ok(timeout(text)?.as_nanos() as u64)
}

/// Parses a duration, in nanoseconds.
#[cfg(feature = "live")]
pub(crate) fn duration(text: &str) -> Result<u64, vcr_base::units::UnitError> {
    vcr_base::units::duration_ns(text)
}

/// Parses a `NonZero` number.
pub(crate) fn at_least_one<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected a whole number of at least 1 and below 2^{}", 8 * size_of::<T>()))
}

/// Parses a size greater than 0, in bytes.
pub(crate) fn memory_limit(text: &str) -> Result<u64, String> {
    match vcr_base::units::bytes(text) {
        Ok(0) => Err("expected more than 0 bytes".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a scenario parameter, `KEY=VALUE`.
pub(crate) fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

/// Parses a token source; the URL of a file becomes the path of its copy.
#[cfg(feature = "live")]
pub(crate) fn token_source(text: &str) -> Result<String, String> {
    let path = Path::new(text);
    if is_guest(text) || vcr_base::input::remote::url(path).is_none() {
        return Ok(text.to_owned());
    }
    input(path)?.into_os_string().into_string().map_err(|_| "expected a path that is a text".to_owned())
}

/// Whether a word names a guest rather than something built in.
pub(crate) fn is_guest(word: &str) -> bool {
    word.ends_with(".wasm") || vcr_guest_tools::registry::GuestReference::is_oci(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_keep_later_equal_signs() {
        assert_eq!(parameter("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(parameter("=b").is_err());
        assert!(parameter("a").is_err());
    }

    #[test]
    fn zero_is_refused_where_at_least_one_is_needed() {
        assert_eq!(at_least_one::<std::num::NonZeroU32>("7").map(|number| number.get()), Ok(7));
        for wrong in ["0", "-1", "4294967296", "x", ""] {
            assert!(at_least_one::<std::num::NonZeroU32>(wrong).is_err(), "{wrong}");
        }
    }
}
