//! Objects at URLs: Amazon S3 and compatible stores (`s3://`), Google Cloud Storage (`gs://`), Azure Blob Storage
//! (`az://`), data sets of the Hugging Face Hub (`hf://datasets/`) and HTTP servers (`https://`).
//!
//! An input is copied to disk before it is read. Interrupted downloads are continued. A copy is kept until the object
//! changes or the cache is full. An output is uploaded when it is complete, in parts if it is large. Until the upload
//! is complete, the file is kept together with a note from which another command can continue.
//!
//! Credentials come from the same sources as for the providers' own tools. They are never part of a URL, an error or
//! a notice.

mod cache;
mod client;
mod download;
mod error;
mod hub;
mod location;
mod note;
mod pending;
mod profile;
mod upload;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use vcr_base::input::remote::Fetch;
use vcr_base::output::{Pending, Upload};

use cache::Cache;
use error::StoreError;
use location::Location;
use pending::PendingFile;

/// Reads and writes objects, configured by the environment.
#[derive(Debug, Default)]
pub struct Store {
    cache: Cache,
}

impl Store {
    /// Registers the store for all file inputs and outputs of this process.
    pub fn install() {
        vcr_base::input::remote::set_fetch(Box::new(Self::default()));
        vcr_base::output::set_upload(Box::new(Self::default()));
    }
}

impl Fetch for Store {
    fn fetch(&self, url: &str) -> io::Result<PathBuf> {
        let location = Location::parse(url)?;
        let copy = match &location {
            Location::DataSet(data_set) => hub::fetch(data_set)?,
            Location::Object(_) => apart(download::fetch(&location, &self.cache))?,
        };
        Ok(copy)
    }
}

impl Upload for Store {
    fn exists(&self, url: &str) -> io::Result<bool> {
        Ok(apart(upload::exists(&Location::parse(url)?))?)
    }

    fn upload(&self, file: &Path, url: &str, replaces: bool) -> io::Result<()> {
        Ok(apart(upload::upload(&Location::parse(url)?, file, replaces)).map(drop)?)
    }

    fn plan(&self, file: &Path, url: &str, replaces: bool) -> io::Result<Box<dyn Pending>> {
        Ok(Box::new(PendingFile::plan(file, url, replaces, self.cache.spool()?)?))
    }

    fn pending(&self) -> io::Result<Vec<Box<dyn Pending>>> {
        let files = PendingFile::all(&self.cache.spool()?)?;
        Ok(files.into_iter().map(|file| Box::new(file) as _).collect())
    }

    fn remove(&self, url: &str) -> io::Result<()> {
        Ok(apart(upload::remove(&Location::parse(url)?))?)
    }

    fn spool(&self) -> io::Result<PathBuf> {
        Ok(self.cache.spool()?)
    }
}

/// Runs a future on its own thread, because the caller's thread may belong to an async runtime.
fn apart<T: Send>(work: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    thread::scope(|scope| {
        let thread = scope.spawn(|| runtime().map_err(StoreError::Runtime)?.block_on(work));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
