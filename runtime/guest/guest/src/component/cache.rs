//! The cache of compiled guests.
//!
//! An entry is machine code and is trusted like this program. Therefore:
//!
//! - Its folder can only be written to, or replaced, by the user.
//! - Each entry has a seal made with the user's secret key. Entries with an invalid seal are ignored.
//! - The cache has its own subfolder and deletes only files with its own names, so it can share a folder with other
//!   files.
//! - An entry's name has the hash of the component, the compiler's version and its settings, so an entry is never
//!   stale.
//! - Entries appear atomically. A damaged entry is compiled again.
//!
//! The cache is optional: on any problem with it, guests are compiled.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::hash::{Hash as _, Hasher};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::component::compile::{self, CompileError};
use crate::component::key::Key;

/// Names the folder in which the cache has its subfolder; empty disables the cache.
const FOLDER_VARIABLE: &str = "VCR_GUEST_CACHE";

const SUBFOLDER: &str = "compiled-guests";

/// Extensions of an entry and of its seal.
const ENTRY_EXTENSION: &str = "cwasm";
const SEAL_EXTENSION: &str = "seal";

/// Hexadecimal digits of an entry's name.
const NAME_DIGITS: usize = 64;

/// Entries unused for this long are removed.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// Time of last use is updated when it is older than this.
const USE_IS_KNOWN_TO: Duration = Duration::from_secs(24 * 3600);

/// Maximum size of all entries; the least recently used ones are removed first.
const BYTES_MAX: u64 = 1 << 30;

pub(crate) struct Cache {
    /// Path without symbolic links.
    folder: PathBuf,
    key: Key,
}

impl Cache {
    /// Opens the cache that the environment names, or the default one; none if other users could write to its folder.
    pub(crate) fn from_env() -> Option<Self> {
        let (home, config_home) = (std::env::var_os("HOME"), std::env::var_os("XDG_CONFIG_HOME"));
        let key_folder = folder_of_user(config_home, home.clone(), ".config");
        match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) if folder.is_empty() => None,
            Some(folder) => Self::inside(&PathBuf::from(folder), key_folder.as_deref()),
            None => {
                let folder = folder_of_user(std::env::var_os("XDG_CACHE_HOME"), home, ".cache")?;
                Self::open(&folder.join(SUBFOLDER), key_folder.as_deref())
            }
        }
    }

    /// Opens the cache in its subfolder of `folder`, which may also hold other files.
    fn inside(folder: &Path, key_folder: Option<&Path>) -> Option<Self> {
        Self::open(&private(folder)?.join(SUBFOLDER), key_folder)
    }

    /// Opens a cache. The key is in `key_folder`, or next to the entries if that folder is unsuitable.
    fn open(folder: &Path, key_folder: Option<&Path>) -> Option<Self> {
        let folder = private(folder)?;
        let of_user = key_folder.and_then(private).and_then(|folder| Key::in_folder(&folder));
        let key = of_user.or_else(|| Key::in_folder(&folder))?;
        Some(Self { folder, key })
    }

    /// Returns the compiled component `bytes`, whose SHA-256 is `digest`, from the cache or freshly compiled and
    /// cached.
    pub(crate) fn compiled(&self, engine: &Engine, digest: &str, bytes: &[u8]) -> Result<Component, CompileError> {
        let entry = self.folder.join(entry_name(engine, digest));
        if let Some(component) = self.read(engine, &entry) {
            return Ok(component);
        }
        let component = compile::compiled(engine, bytes)?;
        // If the entry cannot be stored, the next run compiles again.
        if let Ok(image) = component.serialize() {
            let _ = self.keep(&entry, &image);
        }
        Ok(component)
    }

    fn keep(&self, entry: &Path, image: &[u8]) -> io::Result<()> {
        write_whole(&self.folder, entry, image)?;
        write_whole(&self.folder, &seal_of(entry), self.seal(entry, image).as_bytes())?;
        self.prune(SystemTime::now(), BYTES_MAX)
    }

    /// The contents of the file that marks an entry as complete and written by this program.
    fn seal(&self, entry: &Path, image: &[u8]) -> String {
        let name = entry.file_name().unwrap_or_default().as_encoded_bytes();
        format!("{} {}\n", hex::encode(self.key.code(name, image)), image.len())
    }

    /// Reads the entry, if it exists and its seal is valid.
    fn read(&self, engine: &Engine, entry: &Path) -> Option<Component> {
        let image = fs::read(entry).ok()?;
        if fs::read_to_string(seal_of(entry)).ok()? != self.seal(entry, &image) {
            return None;
        }
        // SAFETY: the seal with the user's key proves that this program wrote these bytes. The sealed name has the
        // compiler's version and settings; `deserialize` also refuses those of another version or other settings.
        #[expect(unsafe_code, reason = "compiled code is trusted, and the safety comment says why it may be")]
        let component = unsafe { Component::deserialize(engine, &image) }.ok()?;
        touch(entry);
        Some(component)
    }

    /// Removes entries unused for long, and the least recently used ones beyond `bytes_max`. Other files stay.
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
        // The latest first; equal times are ordered by name.
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

/// The program's folder for one kind of user files.
fn folder_of_user(given: Option<OsString>, home: Option<OsString>, usual: &str) -> Option<PathBuf> {
    let stated = |folder: Option<OsString>| folder.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let base = stated(given).or_else(|| Some(stated(home)?.join(usual)))?;
    Some(base.join("vcr"))
}

/// Returns the real path of a folder that only the user can write to; creates the folder if it is missing.
fn private(folder: &Path) -> Option<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
    // Other users might replace a symbolic link between two uses.
    let folder = folder.canonicalize().ok()?;
    let user = geteuid().as_raw();
    let about = fs::metadata(&folder).ok()?;
    let is_ours = about.is_dir() && about.uid() == user && about.mode() & 0o022 == 0;
    (is_ours && folder.ancestors().skip(1).all(|above| keeps_its_entries(above, user))).then_some(folder)
}

/// Whether only the user and root can replace the folder's entries; a sticky bit protects entries of other owners.
fn keeps_its_entries(folder: &Path, user: u32) -> bool {
    let Ok(about) = fs::symlink_metadata(folder) else { return false };
    let is_trusted = about.uid() == user || about.uid() == 0;
    about.is_dir() && is_trusted && (about.mode() & 0o022 == 0 || about.mode() & 0o1000 != 0)
}

/// Whether the name is that of an entry, a seal or a temporary file for one.
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

/// The name of a component's entry: a hash of its digest, the compiler's version and the settings.
fn entry_name(engine: &Engine, digest: &str) -> String {
    let mut hash = Sha(Sha256::new());
    digest.hash(&mut hash);
    engine.precompile_compatibility_hash().hash(&mut hash);
    format!("{}.{ENTRY_EXTENSION}", hex::encode(hash.0.finalize()))
}

/// SHA-256 as a [`Hasher`], so that different settings give different names.
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

/// The file next to an entry that marks the entry as complete.
fn seal_of(entry: &Path) -> PathBuf {
    entry.with_extension(SEAL_EXTENSION)
}

/// Updates the time of last use. If that fails, the entry is removed sooner.
fn touch(entry: &Path) {
    let now = SystemTime::now();
    for path in [entry, &seal_of(entry)] {
        let used = fs::metadata(path).and_then(|about| about.modified());
        if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > USE_IS_KNOWN_TO)) {
            let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(now));
        }
    }
}

/// Writes a file atomically.
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

    /// Opens a cache whose key is next to its entries.
    fn open(folder: &Path) -> Option<Cache> {
        Cache::open(folder, None)
    }

    /// Number of files of a cache with this many entries: entries, seals and the key.
    fn files(entries: usize) -> usize {
        2 * entries + 1
    }

    fn folder() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = open(&folder.path().join("deep/down")).expect("the folder will do");
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
        assert!(cache.read(&engine, &entry).is_none());
        compile(&cache, &engine);
        assert!(cache.read(&engine, &entry).is_some());
        let key = cache.folder.join("key");
        assert_eq!(names(&cache), [entry.clone(), seal_of(&entry), key], "and no draft is left");
        // Empty bytes do not compile, so the component comes from the cache.
        cache.compiled(&engine, DIGEST, b"").expect("it was kept");
    }

    #[test]
    fn other_settings_have_another_entry() {
        let (_folder, cache) = folder();
        let other = Engine::new(Config::new().consume_fuel(true)).expect("the machine can run wasmtime");
        compile(&cache, &Engine::default());
        compile(&cache, &other);
        assert_eq!(names(&cache).len(), files(2));
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
            assert!(cache.read(&engine, &entry).is_none());
            compile(&cache, &engine);
            assert!(fs::read(&entry).expect("it was written") == whole, "it is mended");
        }
        fs::remove_file(seal_of(&entry)).expect("it is ours");
        assert!(cache.read(&engine, &entry).is_none(), "nothing marks it as complete");
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        let opens = |mode, path: &Path| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
            open(path).is_some()
        };
        assert!(opens(0o700, folder.path()) && opens(0o755, folder.path()));
        assert!(!opens(0o777, folder.path()) && !opens(0o770, folder.path()) && !opens(0o1777, folder.path()));
        // Whoever can write to a parent folder can replace this folder, unless the sticky bit is set.
        assert!(opens(0o755, &inner) && opens(0o1777, &inner));
        assert!(!opens(0o777, &inner) && !opens(0o775, &inner) && !opens(0o777, &inner.join("deeper")));
        // The target of a link is checked.
        let elsewhere = tempfile::tempdir().expect("a folder");
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(&inner, &link).expect("it is ours");
        assert!(!opens(0o777, &link) && opens(0o755, &link));
        let (_other, cache) = self::folder();
        let about = fs::metadata(&cache.folder).expect("it was made");
        assert_eq!(about.mode() & 0o777, 0o700);
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(open(file.path()).is_none());
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
        // Other files stay, however old and large.
        let others = ["thesis.cwasm", "notes.txt", ".hidden", &format!("{:064x}", 4), &format!("{:064x}.cwasm.bak", 5)];
        let others = others.map(|name| put(name, 400));
        let left = |mut expected: Vec<PathBuf>| {
            expected.extend(others.iter().cloned());
            expected.push(cache.folder.join("key"));
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
        let cache = Cache::inside(folder.path(), None).expect("the folder will do");
        compile(&cache, &Engine::default());
        assert_eq!(cache.folder, folder.path().canonicalize().expect("it is there").join("compiled-guests"));
        assert_eq!(names(&cache).len(), files(1));
        assert!(theirs.exists());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(Cache::inside(folder.path(), None).is_none(), "others could replace the subfolder");
    }

    #[test]
    fn an_entry_that_another_key_sealed_is_not_used() {
        let (_folder, cache) = folder();
        let (_other_folder, other) = folder();
        let engine = Engine::default();
        compile(&cache, &engine);
        for file in names(&cache).into_iter().filter(|file| file.extension().is_some()) {
            fs::copy(&file, other.folder.join(file.file_name().expect("it has one"))).expect("it is ours");
        }
        let entry = entry_name(&engine, DIGEST);
        assert!(cache.read(&engine, &cache.folder.join(&entry)).is_some());
        assert!(other.read(&engine, &other.folder.join(&entry)).is_none());
        // An entry under the name of another is not used either.
        let renamed = cache.folder.join(format!("{:064x}.{ENTRY_EXTENSION}", 7));
        fs::copy(cache.folder.join(&entry), &renamed).expect("it is ours");
        fs::copy(seal_of(&cache.folder.join(&entry)), seal_of(&renamed)).expect("it is ours");
        assert!(cache.read(&engine, &renamed).is_none());
    }

    #[test]
    fn the_key_is_in_the_folder_of_the_users_settings() {
        let (folder, settings) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let cache = Cache::open(folder.path(), Some(&settings.path().join("vcr"))).expect("the folders will do");
        compile(&cache, &Engine::default());
        assert_eq!(names(&cache).len(), 2);
        let about = fs::metadata(settings.path().join("vcr/key")).expect("it was made");
        assert_eq!((about.mode() & 0o777, about.len()), (0o600, 32));
    }

    #[test]
    fn the_usual_folder_is_the_users() {
        let text = |text: &str| Some(OsString::from(text));
        assert_eq!(folder_of_user(text("/c"), text("/h"), ".cache"), Some("/c/vcr".into()));
        assert_eq!(folder_of_user(text(""), text("/h"), ".cache"), Some("/h/.cache/vcr".into()));
        assert_eq!(folder_of_user(None, None, ".cache"), None);
    }
}
