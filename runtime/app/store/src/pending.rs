//! Files that wait for their upload or are being uploaded.

use std::io;
use std::path::{Path, PathBuf};

use vcr_base::output::Pending;

use crate::apart;
use crate::error::StoreError;
use crate::location::Location;
use crate::note::{Note, Sent, digest};
use crate::upload;

#[derive(Debug)]
pub(crate) struct PendingFile {
    note: Note,
    spool: PathBuf,
}

impl PendingFile {
    /// Writes a note that a file must be uploaded.
    pub(crate) fn plan(file: &Path, url: &str, replaces: bool, spool: PathBuf) -> Result<Self, StoreError> {
        // Refuse an invalid URL instead of recording it.
        Location::parse(url)?.writable()?;
        let note = Note::create(file, url, replaces).map_err(StoreError::file(file))?;
        Ok(Self { note, spool })
    }

    /// All waiting files that no other process is uploading, sorted by file name.
    pub(crate) fn all(spool: &Path) -> Result<Vec<Self>, StoreError> {
        let notes = Note::all(spool).map_err(StoreError::file(spool))?;
        Ok(notes.into_iter().map(|note| Self { note, spool: spool.to_owned() }).collect())
    }

    async fn send(&mut self) -> Result<(), StoreError> {
        let location = Location::parse(&self.note.url)?;
        let file = self.note.file.clone();
        let digest = digest(&file).map_err(StoreError::file(&file))?;
        // Files of earlier commands for the same URL.
        let others = Note::all(&self.spool).map_err(StoreError::file(&self.spool))?;
        let others: Vec<Note> = others.into_iter().filter(|other| other.url == self.note.url).collect();
        let earlier = sent_before(&self.note, &others, &digest);
        let version = if earlier.is_empty() { None } else { upload::version(&location).await? };
        let sent = match earlier.into_iter().find(|sent| sent.e_tag == version) {
            Some(sent) => sent,
            None => {
                adopt(&mut self.note, &others, &digest).map_err(StoreError::file(&file))?;
                Sent { e_tag: upload::upload_noted(&location, &mut self.note, &digest).await?, digest }
            }
        };
        self.note.finish(sent.clone()).map_err(StoreError::file(&file))?;
        for other in others {
            self.supersede(other, &location, &sent.digest).await;
        }
        Ok(())
    }

    /// Removes a file that waited for the same URL, if this upload supersedes it.
    async fn supersede(&self, other: Note, location: &Location, sent: &str) {
        if !self.note.replaces && digest(&other.file).map_or(true, |digest| digest != sent) {
            return;
        }
        let ours = self.note.begun.as_ref().map(|begun| &begun.upload_id);
        if let Some(begun) = other.begun.as_ref().filter(|begun| Some(&begun.upload_id) != ours) {
            // The store eventually drops the parts itself.
            let _ = upload::abort(location, begun).await;
        }
        // A file that cannot be removed is uploaded again by the next `vcr upload`.
        let _ = other.remove(&self.spool);
    }
}

/// Completed uploads of the same bytes.
fn sent_before(note: &Note, others: &[Note], digest: &str) -> Vec<Sent> {
    let sent = std::iter::once(note).chain(others).filter_map(|note| note.sent.clone());
    sent.filter(|sent| sent.digest == digest && sent.e_tag.is_some()).collect()
}

/// Takes over an upload of the same bytes that another command has begun.
fn adopt(note: &mut Note, others: &[Note], digest: &str) -> io::Result<()> {
    let has_begun = |note: &Note| note.begun.as_ref().is_some_and(|begun| begun.digest == digest);
    match others.iter().find(|other| has_begun(other)) {
        Some(other) if !has_begun(note) => note.adopt(other),
        _ => Ok(()),
    }
}

impl Pending for PendingFile {
    fn file(&self) -> &Path {
        &self.note.file
    }

    fn url(&self) -> &str {
        &self.note.url
    }

    fn is_sent(&self) -> bool {
        self.note.sent.is_some()
    }

    fn replace(&mut self) {
        self.note.replaces = true;
    }

    fn upload(&mut self) -> io::Result<()> {
        Ok(apart(self.send())?)
    }

    fn remove(self: Box<Self>) -> io::Result<()> {
        self.note.remove(&self.spool)
    }

    fn discard(self: Box<Self>) -> io::Result<()> {
        if let Some(begun) = self.note.begun.as_ref().filter(|_| !self.is_sent()) {
            let location = Location::parse(&self.note.url)?;
            apart(upload::abort(&location, begun))?;
        }
        self.remove()
    }
}
