//! The cache of compiled guests.
//!
//! An entry is machine code, and as trusted as this program is: whoever could
//! write one could do anything. So it lies in a folder that the user alone can
//! write to, is made by this program alone, and is never taken from anywhere
//! else. That folder is a subfolder of its own, and of its files only those named
//! as the cache names them are ever removed: a user may put it beside other
//! files. An entry is found by the hash of the component, the version of the compiler
//! and its settings, so it never goes stale; it appears whole or not at all; and
//! one that is damaged is made again. The cache saves time and is never needed:
//! where anything is wrong with it, guests are compiled.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::hash::{Hash as _, Hasher};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;
use xxhash_rust::xxh3::xxh3_128;

/// Names the folder in which the cache has its subfolder, in place of the usual
/// one of the user; empty to keep none.
const FOLDER_VARIABLE: &str = "VCR_GUEST_CACHE";

/// The cache's own subfolder.
const SUBFOLDER: &str = "compiled-guests";

/// Extensions of an entry and of its seal.
const ENTRY_EXTENSION: &str = "cwasm";
const SEAL_EXTENSION: &str = "seal";

/// Hexadecimal digits of an entry's name.
const NAME_DIGITS: usize = 64;

/// Entries not used for this time are removed.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// An entry's time of use is kept up to date to this.
const USE_IS_KNOWN_TO: Duration = Duration::from_secs(24 * 3600);

/// All entries together; beyond it the least recently used are cleared away.
const BYTES_MAX: u64 = 1 << 30;

/// A folder of compiled guests.
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache that the environment names, or the usual one; none where there
    /// is not one that only the user can write to.
    pub(crate) fn from_env() -> Option<Self> {
        match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) if folder.is_empty() => None,
            Some(folder) => Self::inside(&PathBuf::from(folder)),
            None => Self::open(usual_folder(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))?),
        }
    }

    /// A cache in its subfolder of `folder`, which the user may have for other
    /// files too.
    fn inside(folder: &Path) -> Option<Self> {
        // Who can write to it could put another subfolder in place of ours.
        let is_ours = make_private(folder) && is_private(folder);
        is_ours.then(|| Self::open(folder.join(SUBFOLDER))).flatten()
    }

    fn open(folder: PathBuf) -> Option<Self> {
        (make_private(&folder) && is_private(&folder)).then_some(Self { folder })
    }

    /// The compiled form of the component `bytes`, whose SHA-256 is `digest`:
    /// the one that was kept, or a fresh one that is kept from now on.
    ///
    /// # Errors
    /// The compiler's message.
    pub(crate) fn compiled(&self, engine: &Engine, digest: &str, bytes: &[u8]) -> wasmtime::Result<Component> {
        let entry = self.folder.join(entry_name(engine, digest));
        if let Some(component) = read(engine, &entry) {
            return Ok(component);
        }
        let component = Component::from_binary(engine, bytes)?;
        // Without an entry the next run compiles too, which is all that happens.
        if let Ok(image) = component.serialize() {
            let _ = self.keep(&entry, &image);
        }
        Ok(component)
    }

    fn keep(&self, entry: &Path, image: &[u8]) -> io::Result<()> {
        write_whole(&self.folder, entry, image)?;
        write_whole(&self.folder, &seal_of(entry), seal(image).as_bytes())?;
        self.prune(SystemTime::now(), BYTES_MAX)
    }

    /// Removes entries that were not used for long, and the least recently used
    /// beyond `bytes_max`. Files that the cache has not made stay.
    fn prune(&self, now: SystemTime, bytes_max: u64) -> io::Result<()> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let about = file.metadata()?;
            if !about.is_file() || !is_own_name(&file.file_name().to_string_lossy()) {
                continue;
            }
            entries.push((about.modified()?, file.path(), about.len()));
        }
        // The latest first; names decide the order of equal times.
        entries.sort_by(|a, b| b.cmp(a));
        let mut bytes = 0_u64;
        for (used, path, size_bytes) in entries {
            bytes = bytes.saturating_add(size_bytes);
            let is_old = now.duration_since(used).is_ok_and(|age| age > KEPT_FOR);
            if is_old || bytes > bytes_max {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// The folder for what programs can make again.
fn usual_folder(cache_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let given = |folder: Option<OsString>| folder.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let base = given(cache_home).or_else(|| Some(given(home)?.join(".cache")))?;
    Some(base.join("vcr").join(SUBFOLDER))
}

/// Makes a folder, and those above it, for the user alone where there is none.
fn make_private(folder: &Path) -> bool {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok()
}

/// Whether a file of this name is an entry, a seal or a draft of one.
fn is_own_name(name: &str) -> bool {
    let (name, is_draft) = name.strip_prefix('.').map_or((name, false), |rest| (rest, true));
    let Some((digits, rest)) = name.split_at_checked(NAME_DIGITS) else { return false };
    let is_hex = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let extension = |extension| {
        let rest = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(extension));
        rest.is_some_and(|rest| if is_draft { rest.starts_with('.') } else { rest.is_empty() })
    };
    is_hex && (extension(ENTRY_EXTENSION) || extension(SEAL_EXTENSION))
}

/// Whether only the user can write to a folder.
fn is_private(folder: &Path) -> bool {
    let Ok(about) = fs::metadata(folder) else { return false };
    // The owner of `/proc/self` is the user of this process.
    let is_ours = fs::metadata("/proc/self").map_or(true, |own| own.uid() == about.uid());
    about.is_dir() && is_ours && about.mode() & 0o022 == 0
}

/// The name of the entry of a component: which one it is, and by what compiler
/// and settings it is compiled.
fn entry_name(engine: &Engine, digest: &str) -> String {
    let mut hash = Sha(Sha256::new());
    digest.hash(&mut hash);
    engine.precompile_compatibility_hash().hash(&mut hash);
    format!("{}.{ENTRY_EXTENSION}", hex::encode(hash.0.finalize()))
}

/// SHA-256 as a hasher, so that different settings have different names.
struct Sha(Sha256);

impl Hasher for Sha {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes(*digest.first_chunk().expect("32 bytes hold 8"))
    }
}

/// The file beside an entry that marks it as complete.
fn seal_of(entry: &Path) -> PathBuf {
    entry.with_extension(SEAL_EXTENSION)
}

/// Contents of that file: a hash against damage; the folder's permissions keep others out.
fn seal(image: &[u8]) -> String {
    format!("{:032x} {}\n", xxh3_128(image), image.len())
}

/// The entry, if it is there and whole.
fn read(engine: &Engine, entry: &Path) -> Option<Component> {
    let image = fs::read(entry).ok()?;
    if fs::read_to_string(seal_of(entry)).ok()? != seal(&image) {
        return None;
    }
    // Refuses by itself what another version or other settings have made.
    // SAFETY: it is, byte for byte, what this program has written into a folder
    // that the user alone can write to; the name holds the compiler's version.
    #[expect(unsafe_code, reason = "compiled code is trusted, and the safety comment says why it may be")]
    let component = unsafe { Component::deserialize_file(engine, entry) }.ok()?;
    touch(entry);
    Some(component)
}

/// Notes that an entry is in use. Where that fails it is cleared away sooner.
fn touch(entry: &Path) {
    let now = SystemTime::now();
    for path in [entry, &seal_of(entry)] {
        let used = fs::metadata(path).and_then(|about| about.modified());
        if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > USE_IS_KNOWN_TO)) {
            let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(now));
        }
    }
}

/// Writes a file that others see whole or not at all.
fn write_whole(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut draft = tempfile::Builder::new().prefix(&format!(".{name}.")).tempfile_in(folder)?;
    draft.write_all(bytes)?;
    draft.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use wasmtime::Config;

    use super::*;

    const COMPONENT: &str = "(component (core module (func (export \"f\"))))";
    const DIGEST: &str = "the digest";

    fn folder() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path().join("deep/down")).expect("the folder will do");
        (folder, cache)
    }

    fn compile(cache: &Cache, engine: &Engine) {
        let bytes = wat::parse_str(COMPONENT).expect("the text is WebAssembly");
        cache.compiled(engine, DIGEST, &bytes).expect("it compiles");
    }

    fn names(cache: &Cache) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            fs::read_dir(&cache.folder).expect("it is there").map(|file| file.expect("it is there").path()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_component_is_compiled_once() {
        let (_folder, cache) = folder();
        let engine = Engine::default();
        let entry = cache.folder.join(entry_name(&engine, DIGEST));
        assert!(read(&engine, &entry).is_none());
        compile(&cache, &engine);
        assert!(read(&engine, &entry).is_some());
        assert_eq!(names(&cache), [entry.clone(), seal_of(&entry)], "and no draft is left");
        // Bytes that cannot be compiled: only the entry can answer.
        cache.compiled(&engine, DIGEST, b"").expect("it was kept");
    }

    #[test]
    fn other_settings_have_another_entry() {
        let (_folder, cache) = folder();
        let other = Engine::new(Config::new().consume_fuel(true)).expect("the machine can run wasmtime");
        compile(&cache, &Engine::default());
        compile(&cache, &other);
        assert_eq!(names(&cache).len(), 4);
    }

    #[test]
    fn a_damaged_entry_is_compiled_anew() {
        let (_folder, cache) = folder();
        let engine = Engine::default();
        compile(&cache, &engine);
        let entry = cache.folder.join(entry_name(&engine, DIGEST));
        let whole = fs::read(&entry).expect("it was written");
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        for damaged in [&whole[..whole.len() / 2], &flipped, &[]] {
            fs::write(&entry, damaged).expect("it is ours");
            assert!(read(&engine, &entry).is_none());
            compile(&cache, &engine);
            assert!(fs::read(&entry).expect("it was written") == whole, "it is mended");
        }
        fs::remove_file(seal_of(&entry)).expect("it is ours");
        assert!(read(&engine, &entry).is_none(), "nothing marks it as complete");
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |mode| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
            Cache::open(folder.path().to_owned()).is_some()
        };
        assert!(open(0o700) && open(0o755));
        assert!(!open(0o777) && !open(0o770) && !open(0o1777));
        let (_other, cache) = self::folder();
        let about = fs::metadata(&cache.folder).expect("it was made");
        assert_eq!(about.mode() & 0o777, 0o700);
        // A file is not a folder.
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(Cache::open(file.path().to_owned()).is_none());
    }

    #[test]
    fn old_entries_and_those_beyond_the_limit_are_removed() {
        let (_folder, cache) = folder();
        let now = SystemTime::now();
        let put = |name: &str, age_days: u64| {
            let path = cache.folder.join(name);
            let file = File::create(&path).expect("it is ours");
            file.set_len(100).expect("there is room");
            file.set_modified(now - Duration::from_secs(age_days * 24 * 3600)).expect("it is ours");
            path
        };
        put(&format!("{:064x}.cwasm", 1), 31);
        put(&format!(".{:064x}.seal.77.ThreadId(3)", 1), 31);
        let middle = put(&format!("{:064x}.cwasm", 2), 20);
        let new = put(&format!("{:064x}.seal", 3), 1);
        // Foreign files, however old and large.
        let others = ["thesis.cwasm", "notes.txt", ".hidden", &format!("{:064x}", 4), &format!("{:064x}.cwasm.bak", 5)];
        let others = others.map(|name| put(name, 400));
        let left = |mut expected: Vec<PathBuf>| {
            expected.extend(others.iter().cloned());
            expected.sort();
            assert_eq!(names(&cache), expected);
        };
        cache.prune(now, 1000).expect("it can be listed");
        left(vec![middle, new.clone()]);
        cache.prune(now, 150).expect("it can be listed");
        left(vec![new]);
        cache.prune(now, 0).expect("it can be listed");
        left(vec![]);
    }

    #[test]
    fn files_of_the_folder_that_a_user_names_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let theirs = folder.path().join("thesis.tex");
        File::create(&theirs).expect("it is ours").set_modified(SystemTime::UNIX_EPOCH).expect("it is ours");
        let cache = Cache::inside(folder.path()).expect("the folder will do");
        compile(&cache, &Engine::default());
        assert_eq!(cache.folder, folder.path().join("compiled-guests"));
        assert_eq!(names(&cache).len(), 2);
        assert!(theirs.exists());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(Cache::inside(folder.path()).is_none(), "others could replace the subfolder");
    }

    #[test]
    fn the_usual_folder_is_the_users() {
        let text = |text: &str| Some(OsString::from(text));
        assert_eq!(usual_folder(text("/c"), text("/h")), Some("/c/vcr/compiled-guests".into()));
        assert_eq!(usual_folder(text(""), text("/h")), Some("/h/.cache/vcr/compiled-guests".into()));
        assert_eq!(usual_folder(None, None), None);
    }
}
