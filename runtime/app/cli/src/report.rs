//! `vcr report`: rewrites pages, tables and summaries from the folders of earlier runs.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use vcr_base::output::Outputs;
use vcr_report::{Folder, FolderError, RequestTable, for_each_request};
use vcr_scenario::OutFile;
use vcr_trace::import::table::TableFormat;

use crate::exit::{Exit, eprint_line};
use crate::refusal::Refusal;

pub(crate) const REPORT_EXAMPLES: &str = "Examples:
  vcr run scenarios/pd_burst.rhai --out out
  vcr report out                                  # report.html, junit.xml and more again
  vcr report out --files parquet,csv              # the requests as tables
  vcr report before after -o comparison.html      # one page that compares two folders

Exit codes:
  0  success
  2  bad usage or input file";

const DEFAULT: [OutFile; 4] = [OutFile::Html, OutFile::Junit, OutFile::Summary, OutFile::OpenMetrics];
/// File name of the page that compares folders.
const COMPARISON: &str = "comparison.html";

/// Options of `vcr report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Folders written by vcr run --out; several are compared.
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,

    /// Files to write to the folder: html, junit, summary, openmetrics, csv, parquet
    /// [default: html,junit,summary,openmetrics].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "output")]
    files: Option<Vec<OutFile>>,

    /// Write only the page, to this file [default with several folders: comparison.html].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace files not written by an earlier run.
    #[arg(long)]
    force: bool,
}

pub(crate) fn report(args: &ReportArgs) -> Exit {
    match write(args) {
        Ok(written) => {
            eprint_line(format_args!("wrote {written}"));
            Exit::Passed
        }
        Err(refusal) => refusal.print(),
    }
}

/// Writes the files and returns a description of them.
fn write(args: &ReportArgs) -> Result<String, Refusal> {
    let mut folders = Vec::new();
    for path in &args.folders {
        folders.push(Folder::open(path)?);
    }
    let [folder] = &args.folders[..] else {
        if args.files.is_some() {
            let message = "invalid --files: expected one folder; of several only a page is written";
            return Err(Refusal::input(message));
        }
        name_apart(&mut folders, &args.folders);
        return write_page(args, &folders, args.output.as_deref().unwrap_or(Path::new(COMPARISON)));
    };
    match &args.output {
        Some(path) => write_page(args, &folders, path),
        None => write_files(args, &folders[0], folder),
    }
}

/// Labels folders with the same name, such as `before/out` and `after/out`, by their paths.
fn name_apart(folders: &mut [Folder], paths: &[PathBuf]) {
    let mut labels: Vec<&str> = folders.iter().map(|folder| folder.label.as_str()).collect();
    labels.sort_unstable();
    labels.dedup();
    if labels.len() < folders.len() {
        for (folder, path) in folders.iter_mut().zip(paths) {
            folder.label = path.display().to_string();
        }
    }
}

fn write_page(args: &ReportArgs, folders: &[Folder], path: &Path) -> Result<String, Refusal> {
    let mut rule = Outputs::new(args.force);
    for folder in &args.folders {
        rule.reads(&folder.join("report.json"))?;
    }
    let file = rule.create(path)?;
    file.write_with(|out| vcr_report::write_html(out, folders))?;
    Ok(path.display().to_string())
}

fn write_files(args: &ReportArgs, folder: &Folder, path: &Path) -> Result<String, Refusal> {
    let mut files = args.files.clone().unwrap_or_else(|| DEFAULT.to_vec());
    files.sort_unstable();
    files.dedup();
    let can_write = |file: &OutFile| DEFAULT.contains(file) || table_format(*file).is_some();
    if let Some(file) = files.iter().find(|file| !can_write(file)) {
        return Err(Refusal::input(format!(
            "invalid --files `{file}`: expected html, junit, summary, openmetrics, csv or parquet; only vcr run writes the others"
        )));
    }
    let mut rule = Outputs::new(args.force);
    for name in ["report.json", "charts.json", "requests.jsonl"] {
        rule.reads(&path.join(name))?;
    }
    let names: Vec<&'static str> = files.iter().map(|file| file.file_name()).collect();
    let mut out = rule.folder(path, &names)?;
    let drafts = out.drafts()?.to_owned();
    let mut made = Vec::new();
    for &file in &files {
        let draft = drafts.join(file.file_name());
        let failed = |error: io::Error| {
            Refusal::input(format!("cannot write `{}`: {error}", path.join(file.file_name()).display()))
        };
        let created = std::fs::File::create(&draft).map_err(failed)?;
        let mut writer = BufWriter::new(created);
        match table_format(file) {
            Some(format) => table_of(path)?.write(&mut writer, format),
            None => write_file(&mut writer, folder, file),
        }
        .and_then(|()| writer.flush())
        .map_err(failed)?;
        made.push((file.file_name(), draft));
    }
    out.commit_beside(&made)?;
    Ok(format!("{} to {}", names.join(", "), path.display()))
}

fn table_format(file: OutFile) -> Option<TableFormat> {
    match file {
        OutFile::Csv => Some(TableFormat::Csv),
        OutFile::Parquet => Some(TableFormat::Parquet),
        _ => None,
    }
}

fn table_of(folder: &Path) -> Result<RequestTable, Refusal> {
    let mut table = RequestTable::default();
    match for_each_request(folder, |row| table.add(row))? {
        true => Ok(table),
        false => {
            let name = folder.display();
            Err(Refusal::input(format!("`{name}` has no requests.jsonl, which tables of requests are made of")))
        }
    }
}

fn write_file(out: &mut dyn Write, folder: &Folder, file: OutFile) -> io::Result<()> {
    match file {
        OutFile::Junit => vcr_report::write_junit(out, &folder.report),
        OutFile::Summary => vcr_report::write_summary(out, &folder.report),
        OutFile::OpenMetrics => vcr_report::write_openmetrics(out, &folder.report),
        _ => vcr_report::write_html(out, std::slice::from_ref(folder)),
    }
}

impl From<FolderError> for Refusal {
    fn from(error: FolderError) -> Self {
        Self::input(error.to_string())
    }
}
