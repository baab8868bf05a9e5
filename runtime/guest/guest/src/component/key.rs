//! The secret key by which this program recognises its own files.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

const NAME: &str = "key";

const KEY_BYTES: usize = 32;

/// Block size of SHA-256.
const BLOCK_BYTES: usize = 64;

pub(crate) struct Key([u8; KEY_BYTES]);

impl Key {
    /// Reads or creates the key in a folder that only the user can write to. Ignores a key that others can read.
    pub(crate) fn in_folder(folder: &Path) -> Option<Self> {
        let path = folder.join(NAME);
        Self::read(&path).or_else(|| {
            Self::made(folder, &path)?;
            // Another process may have created it first.
            Self::read(&path)
        })
    }

    fn read(path: &Path) -> Option<Self> {
        // A link may lead to a file whose contents another user knows.
        if !fs::symlink_metadata(path).ok()?.is_file() {
            return None;
        }
        let mut file = File::open(path).ok()?;
        let about = file.metadata().ok()?;
        let is_ours = about.is_file() && about.uid() == geteuid().as_raw() && about.mode() & 0o077 == 0;
        if !is_ours || about.len() != KEY_BYTES as u64 {
            return None;
        }
        let mut key = [0; KEY_BYTES];
        file.read_exact(&mut key).ok()?;
        Some(Self(key))
    }

    fn made(folder: &Path, path: &Path) -> Option<()> {
        let mut key = [0; KEY_BYTES];
        File::open("/dev/urandom").ok()?.read_exact(&mut key).ok()?;
        // Only the user can read a temporary file.
        let mut draft = tempfile::Builder::new().prefix(".key.").tempfile_in(folder).ok()?;
        draft.write_all(&key).ok()?;
        _ = draft.persist_noclobber(path);
        Some(())
    }

    /// HMAC-SHA256 of the name's length, the name, and the contents.
    pub(crate) fn code(&self, name: &[u8], contents: &[u8]) -> [u8; 32] {
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK_BYTES];
            block.iter_mut().zip(self.0).for_each(|(byte, of_key)| *byte ^= of_key);
            Sha256::new().chain_update(block)
        };
        let inner = padded(0x36).chain_update((name.len() as u64).to_le_bytes()).chain_update(name);
        padded(0x5c).chain_update(inner.chain_update(contents).finalize()).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_for_the_user_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = Key::in_folder(folder.path()).expect("it is made");
        assert_eq!(Key::in_folder(folder.path()).expect("it is there").0, key.0);
        let path = folder.path().join(NAME);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
        assert!(Key::in_folder(folder.path()).is_none(), "others could read it");
        fs::remove_file(&path).expect("it is ours");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("it is ours");
        assert!(Key::in_folder(folder.path()).is_none());
        fs::remove_file(&path).expect("it is ours");
        assert_ne!(Key::in_folder(folder.path()).expect("it is made").0, key.0);
    }

    #[test]
    fn codes_depend_on_key_name_and_contents() {
        let key = Key([0x0b; KEY_BYTES]);
        let other = Key([0x0c; KEY_BYTES]);
        assert_eq!(key.code(b"n", b"text"), key.code(b"n", b"text"));
        assert_ne!(key.code(b"n", b"text"), other.code(b"n", b"text"));
        assert_ne!(key.code(b"n", b"text"), key.code(b"nt", b"ext"));
    }
}
