//! The files of a capture.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use vcr_base::output::{Outputs, Uploads, upload_of};
use vcr_trace::capture::{
    CaptureEnd, CaptureError, CaptureLine, CaptureMeta, CaptureReader, CaptureWriter, EngineRecord, Holds, ReadOptions,
    StepRecord, later_parts,
};

use crate::error::RecordError;

/// Written data is flushed to disk at least this often.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// When to start a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum size of a file before compression, in bytes.
    pub size_bytes: Option<u64>,
    /// Maximum age of a file.
    pub time: Option<Duration>,
}

impl Rotation {
    fn is_wanted(self) -> bool {
        self != Self::default()
    }
}

/// The numbered files of a capture. The first file is created at the first write, when its meta line can state the
/// vLLM version.
///
/// If the path is a URL, each file is written to disk and uploaded when it is complete.
pub(crate) struct Parts {
    path: PathBuf,
    uploads: Option<Uploads>,
    rotation: Rotation,
    meta: CaptureMeta,
    open: Option<Open>,
    /// Number of files started so far.
    begun: u32,
}

/// The state of a capture that is being continued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OldCapture {
    /// HTTP exchanges in the capture.
    pub(crate) http: u64,
    /// When the last request or exchange ended, since the start of the capture.
    pub(crate) end_ns: u64,
}

struct Open {
    writer: CaptureWriter,
    path: PathBuf,
    /// Device and inode numbers.
    identity: (u64, u64),
    begun: Instant,
    /// Finished requests in this file.
    requests: u64,
    /// Whether the file contains more than its meta and engine lines.
    is_used: bool,
    is_flushed: bool,
    flushed: Instant,
}

impl Parts {
    /// Checks that files can be created at `path`. If `replace` is true, removes the files of an earlier capture.
    pub(crate) fn new(path: &Path, rotation: Rotation, replace: bool, meta: CaptureMeta) -> Result<Self, RecordError> {
        split(path).ok_or_else(|| RecordError::Suffix { path: path.to_owned() })?;
        let write = |source| RecordError::Write { path: path.to_owned(), source };
        let mut outputs = Outputs::new(replace);
        for part in 0.. {
            let old = part_path(path, part);
            if !outputs.check(&old)? {
                break;
            }
            let removed = upload_of(&old).and_then(|upload| match upload {
                Some((upload, url)) => upload.remove(url),
                None => fs::remove_file(&old),
            });
            removed.map_err(|source| RecordError::Write { path: old.clone(), source })?;
            if !rotation.is_wanted() {
                break;
            }
        }
        let uploads = Uploads::start(path)?;
        if uploads.is_none() {
            // Find errors now, not after the first engine has connected.
            drop(fs::File::create_new(path).map_err(write)?);
            fs::remove_file(path).map_err(write)?;
        }
        Ok(Self { path: path.to_owned(), uploads, rotation, meta, open: None, begun: 0 })
    }

    /// Continues the capture at `path`. Its lines are copied to a new file, which then replaces it. On failure, the
    /// capture stays unchanged.
    pub(crate) fn continued(path: &Path) -> Result<(Self, OldCapture), RecordError> {
        let write = |source| RecordError::Write { path: path.to_owned(), source };
        let read = |error: CaptureError| RecordError::Continue { path: path.to_owned(), reason: error.to_string() };
        split(path).ok_or_else(|| RecordError::Suffix { path: path.to_owned() })?;
        let mut reader = CaptureReader::open(path, &ReadOptions::default()).map_err(read)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let draft = tempfile::NamedTempFile::new_in(folder).map_err(write)?;
        let meta = CaptureMeta { part: 0, holds: Holds { http: true, ..reader.meta().holds }, ..reader.meta().clone() };
        let file = draft.reopen().map_err(write)?;
        let mut writer = CaptureWriter::to_file(file, path, meta.clone()).map_err(write)?;
        let (mut old, mut requests) = (OldCapture::default(), 0);
        while let Some((_, line)) = reader.next_line().map_err(read)? {
            let ended_ns = match &line {
                CaptureLine::End(_) => continue,
                CaptureLine::Http(record) => {
                    old.http += 1;
                    record.arrival_ns.saturating_add(record.end_ns)
                }
                _ => 0,
            };
            old.end_ns = old.end_ns.max(ended_ns);
            requests += u64::from(is_over(&line));
            writer.write(&line).map_err(write)?;
        }
        writer.flush().map_err(write)?;
        let later = later_parts(path);
        draft.persist(path).map_err(|error| write(error.error))?;
        later.iter().try_for_each(fs::remove_file).map_err(write)?;
        let now = Instant::now();
        let open = Open {
            writer,
            path: path.to_owned(),
            identity: identity(path).map_err(write)?,
            begun: now,
            requests,
            is_used: true,
            is_flushed: true,
            flushed: now,
        };
        let (path, uploads, rotation) = (path.to_owned(), None, Rotation::default());
        Ok((Self { path, uploads, rotation, meta, open: Some(open), begun: 1 }, old))
    }

    pub(crate) fn meta_mut(&mut self) -> &mut CaptureMeta {
        &mut self.meta
    }

    pub(crate) fn begun(&self) -> u32 {
        self.begun
    }

    pub(crate) fn write_step<S: Serialize>(&mut self, step: &StepRecord<S>) -> Result<(), RecordError> {
        let open = self.open()?;
        open.is_used = true;
        open.is_flushed = false;
        open.writer.write_step(step).map_err(|source| RecordError::Write { path: open.path.clone(), source })
    }

    pub(crate) fn write(&mut self, line: &CaptureLine) -> Result<(), RecordError> {
        let open = self.open()?;
        open.requests += u64::from(is_over(line));
        open.is_used |= !matches!(line, CaptureLine::Engine(_));
        open.is_flushed = false;
        open.writer.write(line).map_err(|source| RecordError::Write { path: open.path.clone(), source })
    }

    /// Whether the current file has reached a limit.
    pub(crate) fn is_full(&self) -> bool {
        self.open.as_ref().filter(|open| open.is_used).is_some_and(|open| {
            self.rotation.size_bytes.is_some_and(|limit| open.writer.written_bytes() >= limit)
                || self.rotation.time.is_some_and(|limit| open.begun.elapsed() >= limit)
        })
    }

    /// Ends the current file. The next one starts with the same engines.
    pub(crate) fn rotate<'a>(
        &mut self,
        at_ns: u64,
        unfinished: u64,
        engines: impl Iterator<Item = &'a EngineRecord>,
    ) -> Result<(), RecordError> {
        self.end(at_ns, unfinished, true)?;
        self.write_engines(engines)
    }

    /// Recreates a file that was removed or renamed while it was being written. Fails if another file has its name.
    pub(crate) fn begin_again<'a>(
        &mut self,
        removed: RecordError,
        engines: impl Iterator<Item = &'a EngineRecord>,
    ) -> Result<(), RecordError> {
        let RecordError::Removed { path, .. } = &removed else { return Err(removed) };
        if fs::symlink_metadata(path).is_ok() {
            return Err(removed);
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| RecordError::Write { path: path.clone(), source })?;
        }
        self.open = None;
        self.begun -= 1;
        self.write_engines(engines)
    }

    fn write_engines<'a>(&mut self, mut engines: impl Iterator<Item = &'a EngineRecord>) -> Result<(), RecordError> {
        engines.try_for_each(|engine| self.write(&CaptureLine::Engine(Box::new(engine.clone()))))
    }

    /// Ends the current file, and the whole capture unless it `continues`.
    pub(crate) fn end(&mut self, at_ns: u64, unfinished: u64, continues: bool) -> Result<(), RecordError> {
        let requests = self.open()?.requests;
        self.write(&CaptureLine::End(CaptureEnd { at_ns, requests, unfinished, continues }))?;
        let Some(open) = self.open.take() else { return Ok(()) };
        open.check_place()?;
        let Open { writer, path, .. } = open;
        writer.finish().map_err(|source| RecordError::Write { path: path.clone(), source })?;
        if let Some(uploads) = &self.uploads {
            uploads.add(&path, &part_path(&self.path, self.begun - 1))?;
        }
        match self.uploads.take_if(|_| !continues) {
            Some(uploads) => Ok(uploads.finish()?),
            None => Ok(()),
        }
    }

    /// Flushes the written data, unless the last flush was less than [`FLUSH_INTERVAL`] ago.
    pub(crate) fn flush(&mut self) -> Result<(), RecordError> {
        let Some(open) = self.open.as_mut().filter(|open| !open.is_flushed) else { return Ok(()) };
        if open.flushed.elapsed() < FLUSH_INTERVAL {
            return Ok(());
        }
        (open.is_flushed, open.flushed) = (true, Instant::now());
        open.writer.flush().map_err(|source| RecordError::Write { path: open.path.clone(), source })?;
        open.check_place()
    }

    fn open(&mut self) -> Result<&mut Open, RecordError> {
        if self.open.is_none() {
            let named = part_path(&self.path, self.begun);
            let path = match &self.uploads {
                Some(uploads) => uploads.folder().join(named.file_name().unwrap_or_default()),
                None => named,
            };
            let meta = CaptureMeta { part: self.begun, ..self.meta.clone() };
            let (writer, identity) = CaptureWriter::create(&path, meta)
                .and_then(|writer| Ok((writer, identity(&path)?)))
                .map_err(|source| RecordError::Write { path: path.clone(), source })?;
            self.begun += 1;
            let now = Instant::now();
            self.open = Some(Open {
                writer,
                path,
                identity,
                begun: now,
                requests: 0,
                is_used: false,
                is_flushed: false,
                flushed: now,
            });
        }
        Ok(self.open.as_mut().expect("it was opened above"))
    }
}

impl Open {
    /// Fails if the file was removed or replaced: its data would be lost when this process exits.
    fn check_place(&self) -> Result<(), RecordError> {
        let is_there = match identity(&self.path) {
            Ok(found) => found == self.identity,
            // In an unreadable folder, the file may still exist.
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        match is_there {
            true => Ok(()),
            false => Err(RecordError::Removed { path: self.path.clone(), requests: self.requests }),
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

fn is_over(line: &CaptureLine) -> bool {
    matches!(line, CaptureLine::Request(record) if record.finish_reason.is_some())
}

/// Splits a file name before its suffix: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`.
fn split(path: &Path) -> Option<(&str, &str)> {
    let name = path.file_name()?.to_str()?;
    let suffix = [".jsonl", ".jsonl.gz", ".jsonl.zst"].into_iter().find(|suffix| name.ends_with(suffix))?;
    let stem = name.strip_suffix(suffix).filter(|stem| !stem.is_empty())?;
    Some((stem, suffix))
}

/// Returns `NAME.jsonl`, `NAME.1.jsonl` and so on.
fn part_path(path: &Path, part: u32) -> PathBuf {
    match split(path) {
        Some((stem, suffix)) if part > 0 => path.with_file_name(format!("{stem}.{part}{suffix}")),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcr_base::output::OutputError;
    use vcr_trace::capture::{Break, HttpRecord, RequestRecord};

    fn line() -> CaptureLine {
        CaptureLine::Break(Break { reason: "x".repeat(100), ..Break::default() })
    }

    #[test]
    fn parts_have_numbers_before_their_suffix() {
        for (name, first) in
            [("a.jsonl", "a.1.jsonl"), ("a.b.jsonl.gz", "a.b.1.jsonl.gz"), ("a.jsonl.zst", "a.1.jsonl.zst")]
        {
            assert_eq!(part_path(Path::new(name), 0), Path::new(name));
            assert_eq!(part_path(&Path::new("x").join(name), 1), Path::new("x").join(first));
        }
        for wrong in ["a.json", "a", ".jsonl", "a.jsonl.xz"] {
            assert!(split(Path::new(wrong)).is_none(), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_replaced_unless_allowed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.jsonl");
        let rotation = Rotation { size_bytes: Some(1), time: None };
        let new = |replace| Parts::new(&path, rotation, replace, CaptureMeta::default());
        for part in 0..2 {
            fs::write(part_path(&path, part), "mine").expect("it is writable");
        }
        assert!(matches!(new(false), Err(RecordError::Output(OutputError::Exists { .. }))));
        assert!(new(true).is_ok());
        assert!(!part_path(&path, 1).exists(), "a part of an old capture must not seem to be one of the new");
        let below = |path: &str| Parts::new(&folder.path().join(path), rotation, false, CaptureMeta::default());
        assert!(below("new/a.jsonl").is_ok());
        fs::write(&path, "mine").expect("it is writable");
        assert!(matches!(below("a.jsonl/a.jsonl"), Err(RecordError::Output(OutputError::NotAFolder { .. }))));
    }

    #[test]
    fn a_capture_is_continued_with_its_lines() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"] {
            let path = folder.path().join(name);
            let rotation = Rotation { size_bytes: Some(1), time: None };
            let meta = CaptureMeta { format: "vcr.capture".to_owned(), version: 1, ..CaptureMeta::default() };
            let mut parts = Parts::new(&path, rotation, false, meta).expect("it is writable");
            let http = |id: &str| {
                let record = HttpRecord { id: id.to_owned(), arrival_ns: 5, end_ns: 6, ..HttpRecord::default() };
                CaptureLine::Http(Box::new(record))
            };
            parts.write(&http("1")).expect("it is writable");
            parts.rotate(1, 0, [].into_iter()).expect("it is writable");
            parts.write(&http("2")).expect("it is writable");
            parts.end(2, 0, false).expect("it is writable");
            let (mut parts, old) = Parts::continued(&path).expect("it is a capture");
            assert_eq!((old.http, old.end_ns), (2, 11));
            parts.write(&http("3")).expect("it is writable");
            parts.end(3, 0, false).expect("it is writable");
            let mut reader = CaptureReader::open(&path, &ReadOptions::default()).expect("a capture");
            let mut ids = Vec::new();
            while let Some((_, line)) = reader.next_line().expect("a line") {
                if let CaptureLine::Http(record) = line {
                    ids.push(record.id);
                }
            }
            assert_eq!((ids.concat().as_str(), reader.summary().broken_off), ("123", None), "{name}");
            assert!(!part_path(&path, 1).exists(), "its lines are in the first file now");
        }
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_is_noticed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.jsonl");
        let over = CaptureLine::Request(Box::new(RequestRecord {
            finish_reason: Some("stop".to_owned()),
            ..RequestRecord::default()
        }));
        let begun = || {
            let mut parts =
                Parts::new(&path, Rotation::default(), true, CaptureMeta::default()).expect("it is writable");
            parts.write(&over).expect("it is writable");
            fs::remove_file(&path).expect("it is there");
            parts
        };
        let is_removed = |done: Result<(), RecordError>| match done {
            Err(RecordError::Removed { path: of, requests }) => assert_eq!((of, requests), (path.clone(), 1)),
            other => panic!("{other:?}"),
        };
        is_removed(begun().end(1, 0, false));
        is_removed(begun().rotate(1, 0, [].into_iter()));
        let mut written_on = begun();
        written_on.write(&line()).expect("the system still takes it");
        std::thread::sleep(FLUSH_INTERVAL);
        is_removed(written_on.flush());
        let mut replaced = begun();
        fs::write(&path, "another").expect("it is writable");
        is_removed(replaced.end(1, 0, false));
    }

    #[test]
    fn a_removed_file_begins_again_unless_another_has_its_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("captures/a.jsonl");
        let rotation = Rotation { size_bytes: Some(1), time: None };
        let mut parts = Parts::new(&path, rotation, false, CaptureMeta::default()).expect("it is writable");
        let engine = EngineRecord { rank: 3, ..EngineRecord::default() };
        parts.write(&line()).expect("it is writable");
        fs::remove_dir_all(folder.path().join("captures")).expect("it is there");
        let removed = parts.rotate(1, 0, [].into_iter()).expect_err("it is removed");
        parts.begin_again(removed, [&engine].into_iter()).expect("nothing has its name");
        parts.end(2, 0, false).expect("it is writable");
        let text = fs::read_to_string(&path).expect("it is there again");
        let lines: Vec<CaptureLine> = text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
        assert!(matches!(&lines[0], CaptureLine::Meta(meta) if meta.part == 0));
        assert!(matches!(&lines[1], CaptureLine::Engine(engine) if engine.rank == 3));
        assert_eq!((lines.len(), parts.begun()), (3, 1));

        let mut parts = Parts::new(&path, rotation, true, CaptureMeta::default()).expect("it is writable");
        parts.write(&line()).expect("it is writable");
        fs::remove_file(&path).expect("it is there");
        fs::write(&path, "another").expect("it is writable");
        let replaced = parts.rotate(1, 0, [].into_iter()).expect_err("it is replaced");
        let refused = parts.begin_again(replaced, [].into_iter());
        assert!(matches!(refused, Err(RecordError::Removed { .. })), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "another");
    }

    #[test]
    fn a_full_file_is_followed_by_one_with_the_same_engines() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.jsonl");
        let rotation = Rotation { size_bytes: Some(400), time: None };
        let mut parts = Parts::new(&path, rotation, false, CaptureMeta::default()).expect("it is writable");
        let engine = EngineRecord { rank: 3, ..EngineRecord::default() };
        while parts.begun() < 2 {
            parts.write(&line()).expect("it is writable");
            if parts.is_full() {
                parts.rotate(7, 2, [&engine].into_iter()).expect("it is writable");
            }
        }
        parts.end(8, 0, false).expect("it is writable");
        assert_eq!(parts.begun(), 2);
        let text = fs::read_to_string(part_path(&path, 1)).expect("there is a second part");
        let lines: Vec<CaptureLine> = text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
        assert!(matches!(&lines[0], CaptureLine::Meta(meta) if meta.part == 1));
        assert!(matches!(&lines[1], CaptureLine::Engine(engine) if engine.rank == 3));
        assert!(matches!(lines.last(), Some(CaptureLine::End(CaptureEnd { continues: false, .. }))));
        let first = fs::read_to_string(&path).expect("there is a first part");
        let last: CaptureLine = serde_json::from_str(first.lines().last().expect("lines")).expect("a line");
        assert_eq!(last, CaptureLine::End(CaptureEnd { at_ns: 7, requests: 0, unfinished: 2, continues: true }));
    }
}
