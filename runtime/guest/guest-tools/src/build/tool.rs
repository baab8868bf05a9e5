//! Tools from package registries, installed once into the cache directory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::error::BuildError;
use crate::build::options::Options;

/// Written last: a folder with this file is complete.
const MARKER: &str = "complete";

pub(crate) struct Tool<'a> {
    /// Subfolder of the cache directory for the tool's language.
    pub(crate) language: &'static str,
    /// The tool's folder in that subfolder; its name has the tool's version.
    pub(crate) folder: &'a str,
}

impl Tool<'_> {
    /// The folder of the tool. If it is missing, `install` fills a temporary folder, which is then moved into place.
    pub(crate) fn place(
        &self,
        options: &Options,
        install: impl FnOnce(&Path) -> Result<(), BuildError>,
    ) -> Result<PathBuf, BuildError> {
        let cache = options.cache_dir().ok_or(BuildError::NoCache)?.join(self.language);
        let place = cache.join(self.folder);
        if place.join(MARKER).exists() {
            return Ok(place);
        }
        fs::create_dir_all(&cache).map_err(io("create", &cache))?;
        let work = cache.join(format!(".installing-{}", std::process::id()));
        let done = install(&work).and_then(|()| {
            let marker = work.join(MARKER);
            fs::write(&marker, "").map_err(io("write", &marker))?;
            match fs::rename(&work, &place) {
                // Another process installed the same version in the meantime.
                Err(_) if place.join(MARKER).exists() => Ok(()),
                renamed => renamed.map_err(io("create", &place)),
            }
        });
        // A failure only leaves files behind.
        let _ = fs::remove_dir_all(&work);
        done.map(|()| place)
    }
}

/// Makes the error of a failed action on a path.
pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let path = path.to_path_buf();
    move |source| BuildError::Io { action, path, source }
}

/// The first two numbers of a version such as `20.11` or `3 11`.
pub(crate) fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_in("3 11\n"), Some((3, 11)));
        assert_eq!(version_in("v20.20.2\n"), Some((20, 20)));
        assert!(version_in("3 9\n") < Some((3, 10)));
        assert_eq!(version_in("nonsense"), None);
    }

    #[test]
    fn a_tool_is_installed_once_and_only_whole() {
        let cache = tempfile::tempdir().expect("a folder");
        let options = Options { cache_dir: Some(cache.path().into()), ..Options::default() };
        let tool = Tool { language: "some", folder: "tool-1" };
        let failed = tool.place(&options, |work| {
            fs::create_dir(work).expect("it is writable");
            Err(BuildError::NoCache)
        });
        assert!(failed.is_err() && !cache.path().join("some/tool-1").exists());
        assert_eq!(fs::read_dir(cache.path().join("some")).expect("it is there").count(), 0, "leftovers are removed");
        let place = tool.place(&options, |work| fs::create_dir(work).map_err(io("create", work))).expect("installed");
        assert_eq!(tool.place(&options, |_| Err(BuildError::NoCache)).expect("it is there"), place);
    }
}
