//! The reader's state between lines: position in the capture, requests in progress, and warnings.

use std::collections::HashMap;

use serde::Deserialize;

use crate::capture::check::{BlockRule, check, check_http};
use crate::capture::decode::{CaptureFormat, decode, is_cut_off, lacks_meta, typed};
use crate::capture::error::LineProblem;
use crate::capture::error::{CaptureError, CaptureProblem};
use crate::capture::record::{CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, RequestRecord};
use crate::capture::summary::{BrokenOff, CaptureSummary, CaptureWarningKind, Warnings};
use crate::capture::vllm_vcr;

pub(in crate::capture) struct Intake {
    format: CaptureFormat,
    lenient: bool,
    meta: CaptureMeta,
    name: String,
    files: u32,
    /// Number of requests by id that have arrived but not ended. The map is looked up and counted, never iterated,
    /// so its order has no effect.
    under_way: HashMap<String, u32>,
    requests: u64,
    requests_in_file: u64,
    skipped_lines: u64,
    /// The `end` line of the current file, once it was read.
    end: Option<CaptureEnd>,
    /// Whether the last line of the current file is cut off.
    half_line: bool,
    broken_off: Option<BrokenOff>,
    warnings: Warnings,
}

impl Intake {
    pub(in crate::capture) fn new(format: CaptureFormat, name: String, lenient: bool) -> Self {
        Self {
            format,
            lenient,
            meta: CaptureMeta::default(),
            name,
            files: 1,
            under_way: HashMap::new(),
            requests: 0,
            requests_in_file: 0,
            skipped_lines: 0,
            end: None,
            half_line: false,
            broken_off: None,
            warnings: Warnings::default(),
        }
    }

    pub(in crate::capture) fn meta(&self) -> &CaptureMeta {
        &self.meta
    }

    pub(in crate::capture) fn format(&self) -> CaptureFormat {
        self.format
    }

    pub(in crate::capture) fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::capture) fn files(&self) -> u32 {
        self.files
    }

    pub(in crate::capture) fn summary(&self) -> CaptureSummary {
        CaptureSummary {
            requests: self.requests,
            under_way: self.under_way.values().map(|count| u64::from(*count)).sum(),
            skipped_lines: self.skipped_lines,
            broken_off: self.broken_off,
            warnings: self.warnings.list().to_vec(),
        }
    }

    /// Processes the first row. Returns whether it is a meta line.
    pub(in crate::capture) fn begin(&mut self, line: u32, row: &[u8]) -> Result<bool, CaptureError> {
        if let Some(meta) = self.read_meta(line, row)? {
            if meta.part > 0 {
                self.warnings.add(&self.name, line, CaptureWarningKind::StartsLater { part: meta.part });
            }
            self.meta = meta;
            return Ok(true);
        }
        self.meta = vllm_vcr::absent_meta();
        Ok(false)
    }

    pub(in crate::capture) fn begin_part(
        &mut self,
        line: u32,
        row: &[u8],
        name: String,
        part: u32,
    ) -> Result<(), CaptureError> {
        self.begin_empty_part(name);
        if !row.ends_with(b"\n") && is_cut_off(row) {
            self.half_line = true;
            return Ok(());
        }
        let Some(meta) = self.read_meta(line, row)? else {
            return Err(CaptureError::NoMeta { name: self.name.clone(), line });
        };
        if meta.part != part {
            return Err(CaptureError::WrongPart { name: self.name.clone(), part: meta.part, expected: part });
        }
        Ok(())
    }

    pub(in crate::capture) fn begin_empty_part(&mut self, name: String) {
        self.name = name;
        self.files += 1;
        self.requests_in_file = 0;
        self.end = None;
        self.half_line = false;
    }

    fn read_meta(&self, line: u32, row: &[u8]) -> Result<Option<CaptureMeta>, CaptureError> {
        if self.format == CaptureFormat::VllmVcr && lacks_meta(row) {
            return Ok(None);
        }
        if self.format == CaptureFormat::Capture {
            self.check_version(line, row)?;
        }
        match decode(self.format, row) {
            Ok(CaptureLine::Meta(meta)) => self.checked_meta(line, *meta).map(Some),
            Ok(_) => Err(CaptureError::NoMeta { name: self.name.clone(), line }),
            Err(line_problem) => Err(self.error(line, line_problem)),
        }
    }

    /// Checks the version first, because another version may have other fields.
    fn check_version(&self, line: u32, row: &[u8]) -> Result<(), CaptureError> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        match typed::<Version>(row).map_err(|line_problem| self.error(line, line_problem))? {
            Version { version } if version == u64::from(CAPTURE_VERSION) => Ok(()),
            Version { version } => Err(CaptureError::Version { name: self.name.clone(), line, version }),
        }
    }

    fn checked_meta(&self, line: u32, meta: CaptureMeta) -> Result<CaptureMeta, CaptureError> {
        if meta.format != CAPTURE_FORMAT {
            return Err(CaptureError::NoMeta { name: self.name.clone(), line });
        }
        if meta.block_size_tokens == Some(0) {
            let field = if self.format == CaptureFormat::Capture { "block_size_tokens" } else { "meta.block_size" };
            return Err(self.error(line, LineProblem::of(field, CaptureProblem::EmptyBlock)));
        }
        Ok(meta)
    }

    /// Processes a row after the first. Returns `None` if the row has no content or was skipped.
    pub(in crate::capture) fn take(&mut self, line: u32, row: &[u8]) -> Result<Option<CaptureLine>, CaptureError> {
        let taken = decode(self.format, row).and_then(|content| self.accept(line, content));
        match taken {
            Ok(content) => Ok(Some(content)),
            // The writer was stopped in the middle of a line.
            Err(LineProblem { problem: CaptureProblem::CutOff(_), .. })
                if !row.ends_with(b"\n") && self.end.is_none() =>
            {
                self.half_line = true;
                Ok(None)
            }
            Err(line_problem) if self.lenient => {
                self.skipped_lines += 1;
                self.warnings.skipped(&self.name, line, line_problem);
                Ok(None)
            }
            Err(line_problem) => Err(self.error(line, line_problem)),
        }
    }

    fn accept(&mut self, line: u32, content: CaptureLine) -> Result<CaptureLine, LineProblem> {
        if self.end.is_some() {
            return Err(LineProblem::of_line(CaptureProblem::AfterEnd));
        }
        match &content {
            CaptureLine::Meta(meta) if meta.version != self.meta.version => {
                let (first, second) = (self.meta.version, meta.version);
                return Err(LineProblem::of("version", CaptureProblem::MixedVersions { first, second }));
            }
            CaptureLine::Meta(_) => return Err(LineProblem::of_line(CaptureProblem::SecondMeta)),
            CaptureLine::Arrival(arrival) => *self.under_way.entry(arrival.id.clone()).or_default() += 1,
            CaptureLine::Request(record) => self.accept_request(line, record)?,
            CaptureLine::End(end) => {
                let (said, unfinished, held) = (end.requests, end.unfinished, self.requests_in_file);
                self.end = Some(end.clone());
                let is_whole = self.skipped_lines == 0;
                if is_whole && (held < said || held > said.saturating_add(unfinished)) {
                    return Err(LineProblem::of("requests", CaptureProblem::WrongCount { said, unfinished, held }));
                }
            }
            CaptureLine::Http(record) => {
                check_http(record)?;
                for field in record.other.keys() {
                    self.warnings.unknown_field(&self.name, line, field);
                }
            }
            CaptureLine::Engine(_) | CaptureLine::Step(_) | CaptureLine::Kv(_) | CaptureLine::Break(_) => {}
        }
        Ok(content)
    }

    fn accept_request(&mut self, line: u32, record: &RequestRecord) -> Result<(), LineProblem> {
        // The request is counted before it is checked, so that an invalid line gives only one error.
        self.requests_in_file += 1;
        if let Some(count) = record.id.as_ref().and_then(|id| self.under_way.get_mut(id)) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(record.id.as_deref().unwrap_or_default());
            }
        }
        check(record, BlockRule::of(&self.meta, self.format))?;
        self.requests += 1;
        for field in record.other.keys() {
            self.warnings.unknown_field(&self.name, line, field);
        }
        Ok(())
    }

    /// Ends a file. `next` is the name of the next file, if it exists. Returns whether the capture continues.
    pub(in crate::capture) fn end_file(
        &mut self,
        line: u32,
        is_cut: bool,
        next: Option<&str>,
    ) -> Result<bool, CaptureError> {
        if let Some(end) = &self.end {
            return Ok(end.continues);
        }
        let how = if is_cut {
            BrokenOff::CutArchive
        } else if self.half_line {
            BrokenOff::HalfLine
        } else if self.format == CaptureFormat::VllmVcr {
            return Ok(false);
        } else {
            BrokenOff::NoEndLine
        };
        let Some(next) = next else {
            self.breaks_off(line, how);
            return Ok(false);
        };
        if !self.lenient {
            return Err(CaptureError::BrokenPart { name: self.name.clone(), next: next.to_owned() });
        }
        let under_way = self.summary().under_way;
        self.warnings.add(&self.name, line, CaptureWarningKind::BrokenOff { how, under_way });
        Ok(true)
    }

    pub(in crate::capture) fn part_is_missing(&mut self, line: u32, missing: String) -> Result<(), CaptureError> {
        if !self.lenient {
            return Err(CaptureError::MissingPart { name: self.name.clone(), missing });
        }
        self.breaks_off(line, BrokenOff::MissingPart);
        Ok(())
    }

    fn breaks_off(&mut self, line: u32, how: BrokenOff) {
        let under_way = self.summary().under_way;
        self.broken_off = Some(how);
        self.warnings.add(&self.name, line, CaptureWarningKind::BrokenOff { how, under_way });
    }

    fn error(&self, line: u32, line_problem: LineProblem) -> CaptureError {
        CaptureError::Line { name: self.name.clone(), line, field: line_problem.field, problem: line_problem.problem }
    }
}
