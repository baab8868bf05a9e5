//! Uploads of complete files.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use object_store::{Error, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, WriteMultipart};

use crate::client;
use crate::error::StoreError;
use crate::location::Location;

/// Files beyond this size go in parts of at least this size.
const PART_BYTES: u64 = 16 << 20;
/// S3 takes 10,000 parts.
const MAX_PARTS: u64 = 9000;
/// Parts that are sent at the same time.
const PARTS_AT_ONCE: usize = 4;
/// The largest file that is sent whole, to servers that take no parts.
const MAX_WHOLE_BYTES: u64 = 512 << 20;

/// Whether there is an object.
pub(crate) async fn exists(location: &Location) -> Result<bool, StoreError> {
    let object = location.writable()?;
    match client::open(object)?.head(&object.key).await {
        Ok(_) => Ok(true),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(source) => Err(StoreError::object(&object.name)(source)),
    }
}

/// Uploads a file. Without `replaces` nothing that is there is replaced, as far as the store
/// can tell.
pub(crate) async fn upload(location: &Location, file: &Path, replaces: bool) -> Result<(), StoreError> {
    let object = location.writable()?;
    let store = client::open(object)?;
    let failed = StoreError::object(&object.name);
    let read = |source| StoreError::File { path: file.to_owned(), source };
    let mut open = File::open(file).map_err(read)?;
    let bytes = open.metadata().map_err(read)?.len();
    if bytes > PART_BYTES {
        match store.put_multipart(&object.key).await {
            Ok(upload) => {
                let part_bytes = PART_BYTES.max(bytes.div_ceil(MAX_PARTS)) as usize;
                let mut upload = WriteMultipart::new_with_chunk_size(upload, part_bytes);
                let sent = async {
                    let mut piece = vec![0; part_bytes];
                    loop {
                        let len = open.read(&mut piece).map_err(read)?;
                        if len == 0 {
                            return Ok(());
                        }
                        upload.wait_for_capacity(PARTS_AT_ONCE).await.map_err(&failed)?;
                        upload.write(&piece[..len]);
                    }
                };
                return match sent.await {
                    Ok(()) => upload.finish().await.map(drop).map_err(&failed),
                    Err(error) => {
                        // The store forgets the parts by itself some day, too.
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
    open.read_to_end(&mut whole).map_err(read)?;
    let payload = PutPayload::from(whole);
    if !replaces {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match store.put_opts(&object.key, payload.clone(), options).await {
            // Then what `exists` said must do.
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {}
            other => return other.map(drop).map_err(failed),
        }
    }
    store.put(&object.key, payload).await.map(drop).map_err(failed)
}

/// Removes an object, which may be gone already.
pub(crate) async fn remove(location: &Location) -> Result<(), StoreError> {
    let object = location.writable()?;
    match client::open(object)?.delete(&object.key).await {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(source) => Err(StoreError::object(&object.name)(source)),
    }
}
