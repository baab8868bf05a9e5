//! Options and report of playback in `vcr play`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use vcr_base::output::{OutputError, OutputFile, Outputs};
use vcr_live::PlaybackSettings;
use vcr_record::playback::{
    CaptureIndex, CaptureIndexOptions, Expectation, MatchBy, Playback, PlaybackError, PlaybackReport, Unmatched,
};

use vcr_trace::capture::{CaptureLine, CaptureMeta};
use vcr_trace::import::{Format, ImportError, ImportOptions};

use super::unusable::Unusable;
use crate::exit::Exit;

#[derive(Debug, Args)]
#[command(next_help_heading = "Playback of a capture")]
pub(crate) struct PlaybackArgs {
    /// Answer with the tokens and times of this capture, or of any file of requests.
    #[arg(long, alias = "replay", value_name = "CAPTURE", conflicts_with_all = ["playback_tokens", "playback_steps"])]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) playback: Option<PathBuf>,

    /// Answer with the tokens of this capture, at the times of the latency model.
    #[arg(long, alias = "replay-tokens", value_name = "CAPTURE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) playback_tokens: Option<PathBuf>,

    /// Answer with random tokens at the times of this capture.
    #[arg(long, alias = "replay-steps", value_name = "CAPTURE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) playback_steps: Option<PathBuf>,

    /// Source of the times of answers [default: recorded; model if a latency is given].
    #[arg(long, value_enum, value_name = "SOURCE", requires = "playback")]
    pub(crate) playback_times: Option<TimesArg>,

    /// Key that matches requests with records [default: content; index if no record has hashes].
    #[arg(long, alias = "replay-match", value_enum, value_name = "KEY")]
    pub(crate) playback_match: Option<MatchArg>,

    /// Handling of unrecorded requests [default: random; error for captures of HTTP].
    #[arg(long, value_enum, value_name = "POLICY", conflicts_with = "strict")]
    pub(crate) playback_unmatched: Option<UnmatchedArg>,

    /// End with exit code 1 at the first unrecorded request.
    #[arg(long, alias = "replay-strict")]
    pub(crate) strict: bool,

    /// Skip and count unusable lines of the capture.
    #[arg(long)]
    pub(crate) lenient: bool,

    /// Refuse a capture with another fingerprint: of another model, engine or hardware.
    #[arg(long, alias = "expect-config-hash", value_name = "HASH")]
    pub(crate) expect_fingerprint: Option<String>,

    /// Write a report of matched and unmatched requests to this file at the end.
    #[arg(long, value_name = "FILE")]
    pub(crate) playback_report: Option<PathBuf>,

    /// Replace the file of --playback-report if it exists.
    #[arg(long, requires = "playback_report")]
    pub(crate) force: bool,
}

/// When recorded answers come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimesArg {
    /// At the recorded times since each request's arrival; --time-scale speeds them up.
    Recorded,
    /// In steps of the engine, timed by the latency model.
    Model,
}

/// How requests find their records.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MatchArg {
    /// By prompt.
    #[value(alias = "prefix")]
    Content,
    /// In order of arrival.
    Index,
    /// By request id.
    Id,
    /// By session id, in order within the session.
    Session,
}

/// Handling of requests that are not in the capture.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UnmatchedArg {
    /// Answer as without a capture.
    Random,
    /// Fail the request and log where its prompt diverged.
    Error,
    /// Use the record with the longest common prefix.
    Nearest,
    /// Pass the request on to --upstream and add its answer to the capture, which may be new; HTTP only.
    Record,
}

/// The model that the engines serve, and the option that names it.
#[derive(Clone, Copy)]
pub(crate) struct NamedModel<'a> {
    /// The name; empty if unknown.
    pub(crate) name: &'a str,
    pub(crate) option: &'static str,
}

fn hint(error: &PlaybackError, model_option: &str) -> Option<String> {
    match error {
        PlaybackError::Unexpected { what: "model", found: Some(found), .. } => {
            Some(format!("name the model as the capture does: {model_option} {found}"))
        }
        PlaybackError::Unexpected { what: "fingerprint", .. } => {
            Some("play back a capture with this fingerprint, or leave out --expect-fingerprint".to_owned())
        }
        _ => None,
    }
}

/// Settings of the playback, if any.
pub(crate) fn settings(
    args: &PlaybackArgs,
    has_latency: bool,
    model: NamedModel<'_>,
) -> Result<Option<PlaybackSettings>, Unusable> {
    let (path, tokens, times) = match (&args.playback, &args.playback_tokens, &args.playback_steps) {
        (Some(path), ..) => {
            let otherwise = if has_latency { TimesArg::Model } else { TimesArg::Recorded };
            (path, true, args.playback_times.unwrap_or(otherwise) == TimesArg::Recorded)
        }
        (None, Some(tokens), Some(steps)) if tokens != steps => {
            return Err(Unusable {
                message: "--playback-tokens and --playback-steps name two captures, but a request has one record"
                    .to_owned(),
                hint: Some("name the same capture in both, which is what --playback does".to_owned()),
            });
        }
        (None, Some(path), steps) => (path, true, steps.is_some()),
        (None, None, Some(path)) => (path, false, true),
        (None, None, None) => return unused(args).map(|()| None),
    };
    if times && has_latency && args.playback.is_none() {
        return Err(Unusable {
            message: "--playback-steps plays recorded times, so no other latency can be given".to_owned(),
            hint: Some("use --playback-tokens with a latency; --time-scale makes recorded times faster".to_owned()),
        });
    }
    let playback = open(path, args, model)?;
    log_captures(&playback, path, tokens);
    Ok(Some(PlaybackSettings { playback: Arc::new(playback), tokens, times }))
}

/// Refuses options that need a capture.
fn unused(args: &PlaybackArgs) -> Result<(), Unusable> {
    let given = [
        ("--strict", args.strict),
        ("--lenient", args.lenient),
        ("--expect-fingerprint", args.expect_fingerprint.is_some()),
        ("--playback-report", args.playback_report.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(Unusable {
            message: format!("{name} needs a capture to play back"),
            hint: Some("name one with --playback CAPTURE".to_owned()),
        }),
        None => Ok(()),
    }
}

fn open(path: &Path, args: &PlaybackArgs, model: NamedModel<'_>) -> Result<Playback, Unusable> {
    let expected = Expectation {
        fingerprint: args.expect_fingerprint.clone(),
        model: (!model.name.is_empty()).then(|| model.name.to_owned()),
    };
    let unusable = |error: PlaybackError| Unusable { message: error.to_string(), hint: hint(&error, model.option) };
    let options = CaptureIndexOptions { lenient: args.lenient, expected };
    let captures = match vcr_trace::import::format_of(path).map_err(|error| unreadable(&error))? {
        Format::Capture => CaptureIndex::open(path, &options).map_err(unusable)?,
        _ => imported(path, &options, unusable)?,
    };
    let by = match args.playback_match {
        Some(MatchArg::Content) => MatchBy::Content,
        Some(MatchArg::Index) => MatchBy::Index,
        Some(MatchArg::Id) => MatchBy::Id,
        Some(MatchArg::Session) => MatchBy::Session,
        None if captures.has_hashes() => MatchBy::Content,
        None => {
            tracing::warn!("no record has hashes of its prompt, so requests get records in order of arrival");
            MatchBy::Index
        }
    };
    let policy = match args.playback_unmatched {
        _ if args.strict => Unmatched::Fail,
        None | Some(UnmatchedArg::Random) => Unmatched::Random,
        Some(UnmatchedArg::Error) => Unmatched::Error,
        Some(UnmatchedArg::Nearest) => Unmatched::Nearest,
        Some(UnmatchedArg::Record) => {
            return Err(Unusable {
                message: "--playback-unmatched record: expected a capture of HTTP, played back by vcr serve".to_owned(),
                hint: Some("record one with vcr record --upstream".to_owned()),
            });
        }
    };
    Playback::new(captures, by, policy).map_err(unusable)
}

fn unreadable(error: &ImportError) -> Unusable {
    Unusable { message: error.to_string(), hint: None }
}

/// Converts a file that is not a capture, in memory.
fn imported(
    path: &Path,
    options: &CaptureIndexOptions,
    unusable: impl FnOnce(PlaybackError) -> Unusable,
) -> Result<CaptureIndex, Unusable> {
    let import = ImportOptions { lenient: options.lenient, ..ImportOptions::default() };
    let (mut meta, mut records) = (CaptureMeta::default(), Vec::new());
    let imported = vcr_trace::import::import(path, &import, &mut |line| {
        match line {
            CaptureLine::Meta(found) => meta = *found,
            CaptureLine::Request(record) => records.push(*record),
            _ => {}
        }
        Ok(())
    });
    let imported = imported.map_err(|error| unreadable(&error))?;
    for note in &imported.notes {
        tracing::warn!("not kept: {} {}", note.count, note.what);
    }
    CaptureIndex::of_import(path, meta, records, options).map_err(unusable)
}

fn log_captures(playback: &Playback, path: &Path, wants_tokens: bool) {
    let captures = playback.captures();
    for warning in &captures.summary().warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        capture = %path.display(),
        records = captures.num_records(),
        prefixes = captures.num_prefixes(),
        index_bytes = captures.memory_bytes(),
        "playing back"
    );
    if wants_tokens && captures.num_with_tokens() < captures.num_records() {
        tracing::warn!(
            records = captures.num_records() - captures.num_with_tokens(),
            "records hold no output tokens, so random ones are sent; record with --record-tokens"
        );
    }
}

pub(crate) fn report_file(args: &PlaybackArgs) -> Result<Option<OutputFile>, Unusable> {
    let Some(path) = &args.playback_report else { return Ok(None) };
    let mut outputs = Outputs::new(args.force);
    let mut captures = [&args.playback, &args.playback_tokens, &args.playback_steps].into_iter().flatten();
    let opened = captures.try_for_each(|capture| outputs.reads(capture));
    opened.and_then(|()| outputs.create(path)).map(Some).map_err(|error| unwritable(&error))
}

fn unwritable(error: &OutputError) -> Unusable {
    Unusable { message: format!("--playback-report: {error}"), hint: error.hint().map(str::to_owned) }
}

/// Writes the report. With `--strict`, an unrecorded request is a failure.
pub(crate) fn finish(file: Option<OutputFile>, playback: &Playback) -> Result<Exit, Unusable> {
    let report = playback.report();
    log(&report);
    write_report(file, &report)?;
    Ok(if report.has_failed { Exit::CheckFailed } else { Exit::Passed })
}

pub(crate) fn write_report(file: Option<OutputFile>, report: &impl serde::Serialize) -> Result<(), Unusable> {
    let Some(file) = file else { return Ok(()) };
    let written = file.write_with(|out| {
        serde_json::to_writer_pretty(&mut *out, report)?;
        out.write_all(b"\n")
    });
    written.map_err(|error| unwritable(&error))
}

fn log(report: &PlaybackReport) {
    let counts = &report.counts;
    tracing::info!(
        exact = counts.exact,
        same_blocks = counts.same_blocks,
        nearest = counts.nearest,
        unmatched = counts.unmatched,
        unused = report.unused,
        "the playback is over"
    );
}
