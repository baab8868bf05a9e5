//! Uploads files.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{Error, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, WriteMultipart};

use crate::client::{self, Client};
use crate::error::StoreError;
use crate::location::{Location, Object};
use crate::note::{Begun, Note};

/// Larger files are uploaded in parts of at least this size.
const PART_BYTES: u64 = 8 << 20;
/// S3 accepts 10,000 parts.
const MAX_PARTS: u64 = 9000;
/// Number of parts sent concurrently.
const PARTS_AT_ONCE: usize = 4;
/// The largest file that is sent whole, to servers without multipart uploads.
const MAX_WHOLE_BYTES: u64 = 512 << 20;

/// Version of an object; none if the object does not exist, or the store has no versions.
pub(crate) async fn version(location: &Location) -> Result<Option<String>, StoreError> {
    let object = location.writable()?;
    match client::open(object)?.store.head(&object.key).await {
        Ok(meta) => Ok(meta.e_tag),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(source) => Err(StoreError::object(&object.name)(source)),
    }
}

/// Whether an object exists.
pub(crate) async fn exists(location: &Location) -> Result<bool, StoreError> {
    let object = location.writable()?;
    match client::open(object)?.store.head(&object.key).await {
        Ok(_) => Ok(true),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(source) => Err(StoreError::object(&object.name)(source)),
    }
}

/// Uploads a file and returns the object's version. Without `replaces`, an existing object is kept, if the store can
/// detect it.
pub(crate) async fn upload(location: &Location, file: &Path, replaces: bool) -> Result<Option<String>, StoreError> {
    let object = location.writable()?;
    let client = client::open(object)?;
    let read = |source| StoreError::File { path: file.to_owned(), source };
    let open = File::open(file).map_err(read)?;
    let bytes = open.metadata().map_err(read)?.len();
    send(&client, object, file, open, bytes, replaces).await
}

/// Uploads a file that has a note. If the store permits it, parts that it already has are not sent again.
pub(crate) async fn upload_noted(
    location: &Location,
    note: &mut Note,
    digest: &str,
) -> Result<Option<String>, StoreError> {
    let object = location.writable()?;
    let client = client::open(object)?;
    let path = note.file.clone();
    let read = |source| StoreError::File { path: path.clone(), source };
    let open = File::open(&path).map_err(read)?;
    let bytes = open.metadata().map_err(read)?.len();
    let Some(parts) = client.parts.as_deref().filter(|_| bytes > PART_BYTES) else {
        return send(&client, object, &path, open, bytes, note.replaces).await;
    };
    if !note.replaces && exists(location).await? {
        let source = "an object has this name".into();
        return Err(StoreError::object(&object.name)(Error::AlreadyExists { path: object.key.to_string(), source }));
    }
    let mut parts = Parts { store: parts, object, file: open, bytes, note };
    if parts.note.begun.as_ref().is_some_and(|begun| begun.digest == digest) {
        match parts.finish().await {
            // The store has dropped the upload or one of its parts.
            Err(Failure::Store(error)) if is_forgotten(&error) => {}
            other => return other.map_err(|failure| failure.of(object, &path)),
        }
    }
    let sent = async {
        parts.begin(digest).await?;
        parts.finish().await
    };
    sent.await.map_err(|failure| failure.of(object, &path))
}

fn is_forgotten(error: &Error) -> bool {
    // Error codes of S3 and Azure. Azure has only parts, no uploads: it drops the parts of a blob after a week, or
    // when another upload creates the blob.
    let codes = ["InvalidPart", "InvalidBlockList"];
    matches!(error, Error::NotFound { .. }) || codes.iter().any(|code| error.to_string().contains(code))
}

/// The reason why parts could not be sent.
enum Failure {
    Store(Error),
    Disk(io::Error),
}

impl Failure {
    fn of(self, object: &Object, file: &Path) -> StoreError {
        match self {
            Self::Store(source) => StoreError::object(&object.name)(source),
            Self::Disk(source) => StoreError::File { path: file.to_owned(), source },
        }
    }
}

/// A multipart upload whose parts are recorded in a note.
struct Parts<'a> {
    store: &'a dyn MultipartStore,
    object: &'a Object,
    file: File,
    bytes: u64,
    note: &'a mut Note,
}

impl Parts<'_> {
    async fn begin(&mut self, digest: &str) -> Result<(), Failure> {
        let upload_id = self.store.create_multipart(&self.object.key).await.map_err(Failure::Store)?;
        let begun = Begun { upload_id, part_bytes: part_bytes(self.bytes), digest: digest.to_owned() };
        self.note.begin(begun).map_err(Failure::Disk)
    }

    /// Sends the missing parts and completes the object.
    async fn finish(&mut self) -> Result<Option<String>, Failure> {
        let Some(Begun { upload_id, part_bytes, .. }) = self.note.begun.clone() else {
            return Err(Failure::Disk(io::ErrorKind::NotFound.into()));
        };
        let count = self.bytes.div_ceil(part_bytes as u64) as usize;
        let missing: Vec<usize> = (0..count).filter(|index| !self.note.parts.contains_key(index)).collect();
        let (mut missing, mut failure) = (missing.into_iter(), None);
        let mut sending = FuturesUnordered::new();
        loop {
            while failure.is_none() && sending.len() < PARTS_AT_ONCE {
                let Some(index) = missing.next() else { break };
                let first = index as u64 * part_bytes as u64;
                let mut piece = vec![0; (self.bytes - first).min(part_bytes as u64) as usize];
                if let Err(error) = self.file.read_exact_at(&mut piece, first) {
                    failure = Some(Failure::Disk(error));
                    break;
                }
                let sent = self.store.put_part(&self.object.key, &upload_id, index, PutPayload::from(piece));
                sending.push(async move { (index, sent.await) });
            }
            // After a failure, wait for the other parts.
            match sending.next().await {
                None => break,
                Some((index, Ok(part))) => self.note.add_part(index, part.content_id).map_err(Failure::Disk)?,
                Some((_, Err(error))) => failure = failure.or(Some(Failure::Store(error))),
            }
        }
        drop(sending);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let parts = (0..count).filter_map(|index| self.note.parts.get(&index));
        let parts = parts.map(|content_id| PartId { content_id: content_id.clone() }).collect();
        let made = self.store.complete_multipart(&self.object.key, &upload_id, parts).await;
        made.map(|made| made.e_tag).map_err(Failure::Store)
    }
}

fn part_bytes(bytes: u64) -> usize {
    PART_BYTES.max(bytes.div_ceil(MAX_PARTS)) as usize
}

/// Aborts a multipart upload, so that the store drops its parts.
pub(crate) async fn abort(location: &Location, begun: &Begun) -> Result<(), StoreError> {
    let object = location.writable()?;
    let Some(parts) = client::open(object)?.parts else { return Ok(()) };
    match parts.abort_multipart(&object.key, &begun.upload_id).await {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(source) => Err(StoreError::object(&object.name)(source)),
    }
}

/// Sends a file from the beginning.
async fn send(
    client: &Client,
    object: &Object,
    path: &Path,
    mut file: File,
    bytes: u64,
    replaces: bool,
) -> Result<Option<String>, StoreError> {
    let store = &client.store;
    let failed = StoreError::object(&object.name);
    let read = |source| StoreError::File { path: path.to_owned(), source };
    if bytes > PART_BYTES {
        match store.put_multipart(&object.key).await {
            Ok(upload) => {
                let part_bytes = part_bytes(bytes);
                let mut upload = WriteMultipart::new_with_chunk_size(upload, part_bytes);
                let sent = async {
                    let mut piece = vec![0; part_bytes];
                    loop {
                        let len = file.read(&mut piece).map_err(read)?;
                        if len == 0 {
                            return Ok(());
                        }
                        upload.wait_for_capacity(PARTS_AT_ONCE).await.map_err(&failed)?;
                        upload.write(&piece[..len]);
                    }
                };
                return match sent.await {
                    Ok(()) => upload.finish().await.map(|made| made.e_tag).map_err(&failed),
                    Err(error) => {
                        // The store eventually drops the parts itself.
                        let _ = upload.abort().await;
                        Err(error)
                    }
                };
            }
            Err(Error::NotImplemented { .. }) if bytes <= MAX_WHOLE_BYTES => {}
            Err(Error::NotImplemented { .. }) => {
                return Err(StoreError::TooLarge { url: object.name.clone(), bytes, most: MAX_WHOLE_BYTES });
            }
            Err(source) => return Err(failed(source)),
        }
    }
    let mut whole = Vec::with_capacity(bytes as usize);
    file.read_to_end(&mut whole).map_err(read)?;
    let payload = PutPayload::from(whole);
    if !replaces {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match store.put_opts(&object.key, payload.clone(), options).await {
            // The store cannot create conditionally; the earlier `exists` check must suffice.
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {}
            other => return other.map(|made| made.e_tag).map_err(failed),
        }
    }
    store.put(&object.key, payload).await.map(|made| made.e_tag).map_err(failed)
}

/// Removes an object; it may be gone already.
pub(crate) async fn remove(location: &Location) -> Result<(), StoreError> {
    let object = location.writable()?;
    match client::open(object)?.store.delete(&object.key).await {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(source) => Err(StoreError::object(&object.name)(source)),
    }
}
