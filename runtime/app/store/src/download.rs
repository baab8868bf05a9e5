//! Copies objects to disk, in several requests if necessary.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, path::Path};
use vcr_base::units::format_bytes;

use crate::cache::{Cache, Entry, Stamp};
use crate::client;
use crate::error::StoreError;
use crate::location::{Location, Object};

/// Number of consecutive attempts without new data after which fetching fails.
const MAX_ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The user is notified of larger downloads.
const LARGE_BYTES: u64 = 64 << 20;
/// Maximum number of objects in a folder, and of parts of a capture.
const MAX_OBJECTS: usize = 100_000;
/// Time limit for the next object while a store lists a folder.
const LIST_TIMEOUT: Duration = Duration::from_secs(300);
/// A part number that no capture has.
const NO_PART: u32 = u32::MAX;
/// Suffixes of captures. Later parts have a number before the suffix.
const CAPTURE_SUFFIXES: [&str; 3] = [".jsonl", ".jsonl.gz", ".jsonl.zst"];

/// Updates the copy of a file or folder, and returns its path.
pub(crate) async fn fetch(location: &Location, cache: &Cache) -> Result<PathBuf, StoreError> {
    let Location::Object(object) = location else {
        return Err(StoreError::ReadOnly { url: location.name().to_owned() });
    };
    let store = client::open(object)?.store;
    let name = object.key.filename().or(object.url.host_str()).unwrap_or("object").to_owned();
    let found = if object.is_folder {
        below(&*store, object, &name).await?
    } else {
        let meta = store.head(&object.key).await.map_err(StoreError::object(&object.name))?;
        with_later_parts(&*store, object, meta, &name).await?
    };
    let mut entry = cache.entry(&object.name)?;
    for (name, meta) in &found {
        copy(&*store, object, name, meta, &mut entry).await?;
    }
    entry.keep_only(&found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())?;
    Ok(entry.place(&name))
}

/// Lists all objects below a folder; their returned names begin with the folder's name.
async fn below(store: &dyn ObjectStore, folder: &Object, name: &str) -> Result<Vec<(String, ObjectMeta)>, StoreError> {
    let prefix = Some(&folder.key).filter(|key| !key.as_ref().is_empty());
    let mut listed = store.list(prefix);
    let mut found = BTreeMap::new();
    let endless = || StoreError::EndlessList { url: folder.name.clone() };
    loop {
        // A store may return empty pages forever.
        let next = tokio::time::timeout(LIST_TIMEOUT, listed.next()).await;
        let Some(meta) = next.map_err(|_| endless())? else { break };
        let meta = meta.map_err(StoreError::list(&folder.name))?;
        let inner =
            meta.location.as_ref().strip_prefix(folder.key.as_ref()).unwrap_or_default().trim_start_matches('/');
        // Some tools create an empty object for a folder.
        if inner.is_empty() {
            continue;
        }
        let name = format!("{name}/{inner}");
        if found.insert(name, meta).is_some() {
            return Err(endless());
        }
        check_count(folder, found.len())?;
    }
    if found.is_empty() {
        return Err(StoreError::EmptyFolder { url: folder.name.clone() });
    }
    Ok(found.into_iter().collect())
}

fn check_count(object: &Object, count: usize) -> Result<(), StoreError> {
    if count > MAX_OBJECTS {
        return Err(StoreError::TooMany { url: object.name.clone(), most: MAX_OBJECTS });
    }
    Ok(())
}

/// An object, and the later parts of the capture if the object is a first part.
async fn with_later_parts(
    store: &dyn ObjectStore,
    object: &Object,
    first: ObjectMeta,
    name: &str,
) -> Result<Vec<(String, ObjectMeta)>, StoreError> {
    let key = first.location.as_ref().to_owned();
    let folder = key.strip_suffix(name).unwrap_or_default().to_owned();
    let mut found = vec![(name.to_owned(), first)];
    let Some(suffix) = CAPTURE_SUFFIXES.into_iter().find(|suffix| name.ends_with(suffix)) else { return Ok(found) };
    let stem = name.strip_suffix(suffix).unwrap_or(name);
    let part_name = |part: u32| format!("{stem}.{part}{suffix}");
    let path = |name: &str| Path::from(format!("{folder}{name}"));
    for part in 1_u32.. {
        let name = part_name(part);
        // The reader of the capture reports a missing part.
        let Ok(meta) = store.head(&path(&name)).await else { break };
        if part == 1 && store.head(&path(&part_name(NO_PART))).await.is_ok() {
            vcr_base::input::notice(&format!(
                "`{}`: the server has an answer for every name, so later parts of the capture are not looked for",
                object.name
            ));
            break;
        }
        found.push((name, meta));
        check_count(object, found.len())?;
    }
    Ok(found)
}

/// Downloads the missing parts of one object.
async fn copy(
    store: &dyn ObjectStore,
    object: &Object,
    name: &str,
    meta: &ObjectMeta,
    entry: &mut Entry,
) -> Result<(), StoreError> {
    let stamp = Stamp::of(meta);
    if entry.has(name, &stamp) {
        return Ok(());
    }
    let mut partial = entry.partial(name, &stamp)?;
    if stamp.bytes - partial.bytes.min(stamp.bytes) >= LARGE_BYTES {
        let missing = format_bytes((stamp.bytes - partial.bytes) as f64);
        vcr_base::input::notice(&format!("fetching {missing} of `{}`", object.name));
    }
    let mut attempts = 0;
    while partial.bytes != stamp.bytes {
        if partial.bytes > stamp.bytes {
            partial.clear()?;
        }
        let before = partial.bytes;
        let outcome = rest(store, meta, &stamp, object, &mut partial).await;
        match outcome {
            Ok(()) if partial.bytes == stamp.bytes => break,
            Err(error @ (StoreError::Changed { .. } | StoreError::File { .. })) => return Err(error),
            // A server without range support starts again.
            Err(StoreError::Object { source: Error::NotSupported { .. }, .. }) if before > 0 => partial.clear()?,
            Err(error) if is_final(&error) => return Err(error),
            _ => {}
        }
        attempts = if partial.bytes > before { 0 } else { attempts + 1 };
        if attempts == MAX_ATTEMPTS {
            return Err(outcome.err().unwrap_or_else(|| StoreError::Changed { url: object.name.clone() }));
        }
        tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(attempts)).await;
    }
    entry.complete(name, stamp, partial)
}

/// Whether further attempts would fail in the same way.
fn is_final(error: &StoreError) -> bool {
    use Error::{NotFound, PermissionDenied, Unauthenticated};
    matches!(
        error,
        StoreError::Object { source: NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. }, .. }
    )
}

/// Continues an earlier attempt.
async fn rest(
    store: &dyn ObjectStore,
    meta: &ObjectMeta,
    stamp: &Stamp,
    object: &Object,
    partial: &mut crate::cache::Partial,
) -> Result<(), StoreError> {
    let range = (partial.bytes > 0).then_some(GetRange::Offset(partial.bytes));
    let failed = StoreError::object(&object.name);
    let got = store.get_opts(&meta.location, GetOptions { range, ..GetOptions::default() }).await.map_err(&failed)?;
    if got.meta.e_tag != meta.e_tag || got.meta.size != stamp.bytes {
        return Err(StoreError::Changed { url: object.name.clone() });
    }
    let mut stream = got.into_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(&failed)?;
        partial
            .file
            .write_all(&piece)
            .map_err(|source| StoreError::File { path: object.name.clone().into(), source })?;
        partial.bytes += piece.len() as u64;
    }
    Ok(())
}
