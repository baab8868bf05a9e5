//! Writes the output files of a scenario.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use vcr_base::output::{OutputError, OutputFile, OutputFolder};
use vcr_cluster::Report;
use vcr_report::Source;
use vcr_trace::RequestRow;
use vcr_trace::perfetto::PerfettoWriter;

use crate::results::budget::Budget;
use crate::results::out_file::{OutFile, part};
use crate::results::pictures::Pictures;
use crate::results::run_files::RunFiles;
use crate::results::step_files::EnginePlace;
use crate::{Outcome, RunOptions};

pub(crate) struct Outputs {
    rule: vcr_base::output::Outputs,
    folder: Option<OutputFolder>,
    /// Files that are written to the folder.
    wanted: BTreeSet<OutFile>,
    /// The size limit of files that grow with the number of steps.
    budget: Arc<Budget>,
    requests: Option<OutputFile>,
    /// Indices of the runs that have parts.
    opened: BTreeSet<usize>,
}

/// The files that were written to the folder of `--out`.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) names: Vec<&'static str>,
    /// Files that were dropped because they became too large.
    pub(crate) left_out: Vec<&'static str>,
}

impl Outputs {
    /// None if no files are written.
    pub(crate) fn create(script: &Path, options: &RunOptions) -> Result<Option<Self>, OutputError> {
        if options.out.is_none() && options.requests.is_none() {
            return Ok(None);
        }
        let wanted: BTreeSet<OutFile> = match &options.files {
            Some(named) => named.iter().copied().collect(),
            None => OutFile::ALL.into_iter().filter(|file| file.is_default()).collect(),
        };
        let mut rule = vcr_base::output::Outputs::new(options.force);
        rule.reads(script)?;
        let names: Vec<&str> = wanted.iter().map(|file| file.file_name()).collect();
        let folder = options.out.as_deref().map(|path| rule.folder(path, &names)).transpose()?;
        let requests = options.requests.as_deref().map(|path| rule.create(path)).transpose()?;
        let is_default = options.files.is_none();
        let budget = Budget::new(if is_default { options.steps_limit_bytes } else { u64::MAX });
        Ok(Some(Self { rule, folder, wanted, budget, requests, opened: BTreeSet::new() }))
    }

    /// Records a file that the scenario reads, so that outputs cannot replace it.
    pub(crate) fn reads(&mut self, path: &Path) -> Result<(), OutputError> {
        self.rule.reads(path)
    }

    /// Whether any file has guest telemetry over time.
    pub(crate) fn wants_course(&self) -> bool {
        self.wants(OutFile::Trace) || self.wants(OutFile::Guests)
    }

    pub(crate) fn wants_charts(&self) -> bool {
        self.wants(OutFile::Charts) || self.wants(OutFile::Html)
    }

    /// Drops all files except those with the scenario's verdict.
    pub(crate) fn keep_verdicts_only(&mut self) {
        self.wanted.retain(|file| matches!(file, OutFile::Report | OutFile::Junit | OutFile::Summary));
        self.requests = None;
    }

    fn wants(&self, file: OutFile) -> bool {
        self.folder.is_some() && self.wanted.contains(&file) && !(file.is_of_steps() && self.budget.is_spent())
    }

    /// Opens the parts of run number `index`. None if no files are written during runs.
    pub(crate) fn open_run(
        &mut self,
        index: usize,
        name: &str,
        engines: Vec<EnginePlace>,
    ) -> Result<Option<RunFiles>, OutputError> {
        let wants = OutFile::ALL.map(|file| self.wants(file));
        let Some(folder) = &mut self.folder else { return Ok(None) };
        let drafts = folder.drafts()?.to_owned();
        self.opened.insert(index);
        let opened = RunFiles::open(drafts, index, name, engines, &self.budget, |file| wants[file as usize]);
        opened.map(Some).map_err(|source| self.error(source))
    }

    /// Converts an error of a draft to an error of the folder.
    pub(crate) fn error(&self, source: io::Error) -> OutputError {
        let folder = self.folder.as_ref().map_or(Path::new(""), |folder| folder.path());
        OutputError::Folder { path: folder.to_owned(), source }
    }

    /// Writes the report, the requests and the derived files, joins the parts, and renames all drafts to their
    /// final names.
    pub(crate) fn finish(
        mut self,
        runs: &[Arc<Report>],
        report: &impl Serialize,
        source: Source,
    ) -> Result<Written, OutputError> {
        let mut written = Written::default();
        let mut files = Vec::new();
        let source = Some(source).filter(|_| self.wants_charts());
        let has_pictures = self.folder.is_some() && self.wanted.iter().any(|file| file.is_picture());
        let pictures = has_pictures.then(|| Pictures::new(report, runs, source)).transpose();
        let mut pictures = pictures.map_err(|source| self.error(source))?;
        if let Some(folder) = &mut self.folder {
            let drafts = folder.drafts()?.to_owned();
            for &file in &self.wanted {
                if file.is_of_steps() && self.budget.is_spent() {
                    written.left_out.push(file.file_name());
                    continue;
                }
                let made = match &mut pictures {
                    Some(pictures) if file.is_picture() => {
                        pictures.link_to(&written.names);
                        write_draft(&drafts, file, |out| pictures.write(file, out)).map(Some)
                    }
                    _ => self.make(file, &drafts, runs, report),
                };
                if let Some(draft) = made.map_err(|source| self.error(source))? {
                    written.names.push(file.file_name());
                    files.push((file.file_name(), draft));
                }
            }
        }
        if let Some(requests) = self.requests {
            requests.write_with(|out| write_requests(out, runs))?;
        }
        if let Some(folder) = self.folder {
            folder.commit(&files)?;
        }
        Ok(written)
    }

    /// Writes the draft of a complete file. None if the file has no contents.
    fn make(
        &self,
        file: OutFile,
        drafts: &Path,
        runs: &[Arc<Report>],
        report: &impl Serialize,
    ) -> io::Result<Option<PathBuf>> {
        match file {
            OutFile::Report => write_draft(drafts, file, |out| write_report(out, report)).map(Some),
            OutFile::Requests => write_draft(drafts, file, |out| write_requests(out, runs)).map(Some),
            _ => {
                let path = drafts.join(file.file_name());
                self.join(file, drafts, &path)?;
                // A run may have no guests, and external servers report no steps.
                let is_absent = matches!(file, OutFile::Guests | OutFile::Steps) && fs::metadata(&path)?.len() == 0;
                Ok((!is_absent).then_some(path))
            }
        }
    }

    /// Joins the parts of all runs by appending to the first part.
    fn join(&self, file: OutFile, drafts: &Path, path: &Path) -> io::Result<()> {
        let is_trace = file == OutFile::Trace;
        let mut parts = self.opened.iter().peekable();
        let mut whole = if let Some(first) = parts.next_if(|index| **index == 0) {
            fs::rename(part(drafts, *first, file), path)?;
            let mut whole = File::options().write(true).open(path)?;
            whole.seek(SeekFrom::End(0))?;
            whole
        } else {
            // The first run was stopped before it began, but a later run was not.
            let mut whole = File::create(path)?;
            whole.write_all(if is_trace { PerfettoWriter::<File>::HEADER } else { b"" })?;
            whole
        };
        for (index, number) in parts.enumerate() {
            let part = part(drafts, *number, file);
            if is_trace && (index > 0 || self.opened.contains(&0)) {
                whole.write_all(PerfettoWriter::<File>::SEPARATOR)?;
            }
            io::copy(&mut File::open(&part)?, &mut whole)?;
            fs::remove_file(&part)?;
        }
        if is_trace {
            whole.write_all(PerfettoWriter::<File>::FOOTER)?;
        }
        whole.flush()
    }
}

fn write_draft(
    drafts: &Path,
    file: OutFile,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let path = drafts.join(file.file_name());
    let mut out = BufWriter::new(File::create(&path)?);
    write(&mut out)?;
    out.flush()?;
    Ok(path)
}

/// Writes a file that depends only on results.
pub(crate) fn write_file(
    outcome: &Outcome,
    file: OutFile,
    source: &str,
    out: &mut (impl Write + Send),
) -> io::Result<()> {
    match file {
        OutFile::Report => write_report(out, outcome),
        OutFile::Requests => write_requests(out, &outcome.runs),
        OutFile::Steps | OutFile::Trace | OutFile::Guests => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{file} is written while runs are made")))
        }
        file => {
            let is_drawn = matches!(file, OutFile::Charts | OutFile::Html);
            let source = is_drawn.then(|| Source { name: outcome.scenario.clone(), text: source.to_owned() });
            Pictures::new(outcome, &outcome.runs, source)?.write(file, out)
        }
    }
}

fn write_report(out: &mut impl Write, report: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    out.write_all(b"\n")
}

pub(crate) fn write_requests(out: &mut impl Write, runs: &[Arc<Report>]) -> io::Result<()> {
    for run in runs {
        for row in run.request_rows() {
            serde_json::to_writer(&mut *out, &RequestRow { of: Some(run.name.as_str().into()), ..row })?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Silent, run_file};

    const SCRIPT: &str = r#"
        let c = cluster(#{ engines: pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) }) });
        let w = burst(#{ count: 30, over: "20s", prompt_tokens: 200, output_tokens: 300 });
        run_all([1, 2, 3, 4].map(|seed| #{ seed: seed, cluster: c, workloads: [ w ] }));
    "#;

    fn written(limit_bytes: u64, threads: usize) -> (Outcome, BTreeMap<String, Vec<u8>>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = folder.path().join("script.rhai");
        fs::write(&script, SCRIPT).expect("it is writable");
        let out = folder.path().join("out");
        let options =
            RunOptions { threads, out: Some(out.clone()), steps_limit_bytes: limit_bytes, ..RunOptions::default() };
        let outcome = run_file(&script, options, Arc::new(Silent)).expect("it runs");
        let entries = fs::read_dir(&out).expect("it is there").map(|entry| entry.expect("it can be listed"));
        let files = entries.map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("a file, no drafts"))
        });
        (outcome, files.collect())
    }

    #[test]
    fn steps_beyond_the_limit_are_left_out_and_change_nothing() {
        let (all, whole) = written(u64::MAX, 1);
        let size = (whole["steps.jsonl"].len() + whole["trace.json"].len()) as u64;
        // In addition to the parts, there are a footer and three separators.
        for (limit_bytes, fits) in [(size, true), (size / 2, false), (1000, false)] {
            for threads in [1, 3] {
                let (outcome, files) = written(limit_bytes, threads);
                assert_eq!(outcome.fingerprint, all.fingerprint);
                assert_eq!(files["report.json"], whole["report.json"]);
                assert_eq!(files["requests.jsonl"], whole["requests.jsonl"]);
                assert_eq!(files.contains_key("steps.jsonl"), fits, "{limit_bytes} bytes of {size}");
                assert_eq!(files.get("trace.json").is_some_and(|trace| *trace == whole["trace.json"]), fits);
            }
        }
    }

    #[test]
    fn files_are_known_by_their_names() {
        for file in OutFile::ALL {
            let is_built = file != OutFile::Parquet || vcr_trace::import::table::TableFormat::Parquet.is_built();
            assert_eq!(file.name().parse().ok(), is_built.then_some(file));
            assert!(file.file_name().contains(file.name()));
        }
        assert!("step".parse::<OutFile>().is_err());
    }
}
