//! Options of `vcr serve` for playback of HTTP captures, which comes before its own routes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::Args;
use vcr_base::input::read_yaml;
use vcr_base::output::OutputFile;
use vcr_frontend::faults::ClientFault;
use vcr_frontend::proxy::{Address, Journal, Misses, Pace, Player, Proxy, ProxyOptions, Times, Upstream};
use vcr_record::http::JsonPath;
use vcr_record::playback::http::{HttpTape, MatchRules};
use vcr_record::{HttpRecordConfig, HttpRecorder, RecordError, Rotation};
use vcr_text::Tokenizer;

use crate::exit::Exit;
use crate::play::args::LiveArgs;
use crate::play::playback::{self, PlaybackArgs, TimesArg, UnmatchedArg};
use crate::play::unusable::Unusable;
use crate::serve::operations::FOUND_BY_REQUEST;
use crate::service::with_causes;

/// Limit of a recorded body.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Limit of a file of match rules.
const MATCH_FILE_BYTES: u64 = 1 << 20;
/// Limit of data waiting to be written.
const QUEUE_BYTES: usize = 256 << 20;

#[derive(Debug, Args)]
#[command(next_help_heading = "Playback of HTTP")]
pub(crate) struct TapeArgs {
    /// Send unrecorded requests to this server, and add its answers to the capture.
    #[arg(long, value_name = "URL", requires = "playback")]
    upstream: Option<String>,

    /// Ignore this path in JSON bodies when matching recordings, such as messages.0.content (repeatable).
    #[arg(long, value_name = "PATH", requires = "playback")]
    playback_ignore: Vec<JsonPath>,

    /// YAML or JSON file of rules for matching recordings: parts to ignore or compare, and the order
    /// in which equal recordings answer.
    #[arg(long = "match", value_name = "FILE", requires = "playback")]
    #[arg(value_parser = crate::values::InputPath)]
    match_file: Option<PathBuf>,

    /// Keep the latest N requests, and serve them at /_vcr/requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keep_requests: Option<u32>,
}

/// An HTTP capture that is played back.
#[derive(Clone)]
pub(crate) struct PlayedTape {
    tape: Arc<HttpTape>,
    recorder: Option<Arc<HttpRecorder>>,
    is_strict: bool,
    /// The engines' timing of recorded answers, if they time them.
    pub(crate) pace: Option<Arc<Pace>>,
}

/// Ends the server. Set once the server runs.
pub(crate) type Ending = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// Whether the capture is of HTTP, or will be recorded as one.
pub(crate) fn is_http(args: &TapeArgs, playback: &PlaybackArgs) -> bool {
    let Some(path) = &playback.playback else { return false };
    let records = matches!(unmatched(args, playback), Some(UnmatchedArg::Record));
    if records && !path.exists() {
        return true;
    }
    let reader = vcr_trace::capture::CaptureReader::open(path, &vcr_trace::capture::ReadOptions::default());
    reader.is_ok_and(|reader| reader.meta().holds.http)
}

/// Makes the playback service, which comes before the routes, and its capture. `ending` is called at the first miss
/// of a strict playback. `tokenizer` counts tokens if recorded answers have no usage.
pub(crate) fn player(
    args: &TapeArgs,
    live: &LiveArgs,
    faults: &[ClientFault],
    ending: &Ending,
    tokenizer: &Tokenizer,
) -> Result<(Option<Player>, Option<PlayedTape>), Unusable> {
    if live.playback.playback.is_some() && faults.iter().any(ClientFault::changes_requests) {
        return Err(Unusable::new(format!("--client-fault with --playback: {FOUND_BY_REQUEST}")));
    }
    let journal = args.keep_requests.map(|limit| Journal::new(limit as usize));
    let recorded = Times::Recorded(live.timing.time_scale);
    let path = live.playback.playback.as_ref().filter(|_| is_http(args, &live.playback));
    let Some(path) = path else {
        if args.upstream.is_some() || args.match_file.is_some() || !args.playback_ignore.is_empty() {
            let hint = Some("record one with vcr record --upstream".to_owned());
            let message = "--upstream, --match and --playback-ignore are for captures of HTTP".to_owned();
            return Err(Unusable { message, hint });
        }
        let player = journal.map(|journal| Player {
            tape: None,
            misses: Misses::Simulate,
            times: recorded,
            journal: Some(journal),
        });
        return Ok((player, None));
    };
    let tape = Arc::new(open(path, args, &live.playback)?);
    let mut recorder = None;
    let unmatched = unmatched(args, &live.playback);
    if args.upstream.is_some() && !matches!(unmatched, Some(UnmatchedArg::Record)) {
        return Err(Unusable {
            message: "--upstream: no request is passed on".to_owned(),
            hint: Some("leave out --strict, or --playback-unmatched error and random".to_owned()),
        });
    }
    let misses = match unmatched {
        _ if live.playback.strict => {
            let ending = Arc::clone(ending);
            let stop = move || ending.get().into_iter().for_each(|end| end());
            Misses::Refuse { stop: Some(Box::new(stop)) }
        }
        None | Some(UnmatchedArg::Error) => Misses::Refuse { stop: None },
        Some(UnmatchedArg::Random) => Misses::Simulate,
        Some(UnmatchedArg::Nearest) => {
            return Err(Unusable::new("--playback-unmatched nearest: expected error, random or record for HTTP"));
        }
        Some(UnmatchedArg::Record) => {
            let (proxy, its) = recording(path, args, &tape)?;
            recorder = Some(its);
            Misses::Record(Box::new(proxy))
        }
    };
    let pace = (live.playback.playback_times == Some(TimesArg::Model)).then(|| Arc::new(Pace::new(tokenizer.clone())));
    let times = pace.clone().map_or(recorded, Times::Engines);
    let played = PlayedTape { tape: Arc::clone(&tape), recorder, is_strict: live.playback.strict, pace };
    Ok((Some(Player { tape: Some(tape), misses, times, journal }), Some(played)))
}

/// Handling of unrecorded requests. With `--upstream`, they are forwarded and recorded by default.
fn unmatched(args: &TapeArgs, playback: &PlaybackArgs) -> Option<UnmatchedArg> {
    let default = args.upstream.as_ref().filter(|_| !playback.strict).map(|_| UnmatchedArg::Record);
    playback.playback_unmatched.or(default)
}

/// The rules of `--match` and `--playback-ignore`.
fn rules(args: &TapeArgs) -> Result<MatchRules, Unusable> {
    let mut rules = match &args.match_file {
        None => MatchRules::default(),
        Some(path) => {
            let invalid = |error: &dyn std::fmt::Display| Unusable {
                message: format!("--match {}: {error}", path.display()),
                hint: Some("docs/schemas/match.schema.json describes the file".to_owned()),
            };
            let text = read_yaml(path, MATCH_FILE_BYTES).map_err(|error| invalid(&error))?;
            yaml_serde::from_str::<Option<MatchRules>>(&text).map_err(|error| invalid(&error))?.unwrap_or_default()
        }
    };
    rules.ignore.extend(args.playback_ignore.iter().cloned());
    Ok(rules)
}

fn open(path: &Path, args: &TapeArgs, playback: &PlaybackArgs) -> Result<HttpTape, Unusable> {
    let refused = |option: &str| Err(Unusable::new(format!("{option} is not for captures of HTTP")));
    if playback.playback_match.is_some() {
        return refused("--playback-match");
    }
    if playback.expect_fingerprint.is_some() {
        return refused("--expect-fingerprint");
    }
    let rules = rules(args)?;
    if !path.exists() {
        return Ok(HttpTape::empty(rules));
    }
    let tape = HttpTape::open(path, rules, playback.lenient).map_err(|error| Unusable::new(with_causes(&error)))?;
    let report = tape.report();
    tracing::info!(
        capture = %path.display(),
        recordings = report.recordings,
        incomplete = report.incomplete,
        "playing back HTTP"
    );
    Ok(tape)
}

/// Makes the proxy that forwards unrecorded requests, and the recorder that adds them to the capture.
fn recording(path: &Path, args: &TapeArgs, tape: &Arc<HttpTape>) -> Result<(Proxy, Arc<HttpRecorder>), Unusable> {
    let Some(url) = &args.upstream else {
        return Err(Unusable {
            message: "--playback-unmatched record needs the server to record".to_owned(),
            hint: Some("name it with --upstream URL".to_owned()),
        });
    };
    let address: Address = url.parse().map_err(|error| Unusable::new(format!("--upstream: {error}")))?;
    let upstream = Upstream::new(address, None).map_err(|error| Unusable::new(with_causes(&error)))?;
    let added = Arc::clone(tape);
    let config = HttpRecordConfig {
        out: path.to_owned(),
        replace: false,
        rotation: Rotation::default(),
        model: None,
        gpu: None,
        redact: tape.rules().redact.clone(),
        queue_bytes: QUEUE_BYTES,
        max_body_bytes: MAX_BODY_BYTES,
        count_tokens: None,
        continues: true,
        observer: Some(Arc::new(move |record| added.add(record.clone()))),
    };
    let recorder = HttpRecorder::start(&config);
    let recorder = Arc::new(recorder.map_err(|error: RecordError| Unusable::new(with_causes(&error)))?);
    let options = ProxyOptions { max_body_bytes: MAX_BODY_BYTES };
    Ok((Proxy::new(upstream, Arc::clone(&recorder), options, None), recorder))
}

impl PlayedTape {
    /// Ends the recording, writes the report and prints totals of the playback.
    pub(crate) fn finish(&self, file: Option<OutputFile>) -> Result<Exit, Unusable> {
        if let Some(recorder) = &self.recorder {
            let summary = recorder.finish().map_err(|error| Unusable::new(with_causes(&error)))?;
            tracing::info!(exchanges = summary.http, keys = summary.keys, "the capture is complete");
        }
        let report = self.tape.report();
        tracing::info!(
            matched = report.matched,
            repeated = report.repeated,
            missed = report.missed,
            unused = report.unused,
            "the playback is over"
        );
        playback::write_report(file, &report)?;
        Ok(if self.is_strict && report.missed > 0 { Exit::CheckFailed } else { Exit::Passed })
    }
}
