//! `vcr record`: writes captures as a proxy.

pub(crate) mod args;
#[cfg(feature = "serve")]
mod http_args;
#[cfg(feature = "serve")]
mod upstream;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use vcr_record::{RecordConfig, RecordError, RecordSummary, Recorder, RecorderHandle, Rotation};

use crate::exit::{Exit, print_error, printed};
use crate::service::{log, raise_limit_of_files, with_causes};
use crate::stop::{self, Cause};
use crate::terminal::text::counted;
use args::RecordArgs;

pub(crate) fn record(args: &RecordArgs) -> Exit {
    let shown = !args.quiet && std::io::stderr().is_terminal();
    let lines = shown.then(MultiProgress::new);
    log(args.quiet, lines.clone());
    raise_limit_of_files();
    #[cfg(feature = "serve")]
    if let Some(upstream) = &args.http.upstream {
        return upstream::record(args, upstream, lines);
    }
    #[cfg(feature = "serve")]
    if args.http.page.ui_address.is_some() {
        let hint = "it shows HTTP, which vcr record --upstream URL passes on";
        print_error(&"--ui-address: there is no page between a frontend and its engines", Some(hint));
        return Exit::BadInput;
    }
    match config(args).and_then(|config| serve(&config, lines)) {
        Ok(summary) => {
            let written = print_summary(&summary, args);
            if let Some(exit) = removed(&summary) {
                return printed(written, exit);
            }
            if summary.refused_inits == 0 {
                return printed(written, passed());
            }
            let refused = summary.refused_inits;
            let message = format!(
                "{} of the frontend could not be relayed, so engines were not recorded",
                counted(refused, "INIT message")
            );
            print_error(&message, Some("the log has the reason; this build reads the messages of vLLM 0.27 to 0.33"));
            printed(written, Exit::Fault)
        }
        Err(Failed { error, was_serving }) => {
            let is_about_addresses = matches!(error, RecordError::NoFrontend { .. } | RecordError::NoEngines { .. });
            print_error(&with_causes(&error), hint(&error));
            if was_serving && !is_about_addresses { Exit::Fault } else { Exit::BadInput }
        }
    }
}

/// The exit of a complete recording.
fn passed() -> Exit {
    if stop::cause() == Some(Cause::Timeout) { Exit::TimedOut } else { Exit::Passed }
}

/// The exit of a recording whose files were removed.
fn removed(summary: &RecordSummary) -> Option<Exit> {
    if summary.removed_files == 0 {
        return None;
    }
    let (files, requests) =
        (counted(summary.removed_files, "file"), counted(summary.removed_requests, "finished request"));
    let message = format!("the capture lacks {requests}: {files} removed or renamed while written");
    print_error(&message, Some(REMOVED));
    Some(Exit::Fault)
}

const REMOVED: &str = "move or remove only complete files of the capture, which --rotate-size and --rotate-time end";

fn hint(error: &RecordError) -> Option<&'static str> {
    match error {
        RecordError::Output(error) => error.hint(),
        RecordError::SameAddress { .. } => Some(
            "--frontend-handshake is where the frontend waits for engines, --engine-handshake a free address of this \
             machine, which engines are given in its place",
        ),
        RecordError::Removed { .. } => Some(REMOVED),
        RecordError::NoEngines { .. } => Some("start engines with --handshake-address at that address"),
        _ => None,
    }
}

/// The reason why a recording ended. Errors before it served are user errors.
struct Failed {
    error: RecordError,
    was_serving: bool,
}

impl From<RecordError> for Failed {
    fn from(error: RecordError) -> Self {
        Self { error, was_serving: false }
    }
}

fn serve(config: &RecordConfig, lines: Option<MultiProgress>) -> Result<RecordSummary, Failed> {
    let (_in_order, starting) = stop::in_order_from_start(RecorderHandle::stop);
    let recorder = Recorder::start(config)?;
    starting.started(recorder.handle());
    let bar = lines.map(|lines| {
        let handle = recorder.handle();
        show_progress(&lines, move || handle.summary())
    });
    let bar = bar.transpose()?;
    let ended = recorder.wait();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    ended.map_err(|error| Failed { error, was_serving: true })
}

fn config(args: &RecordArgs) -> Result<RecordConfig, Failed> {
    let bind_host = match (&args.bind_host, host_of(&args.engine_handshake)) {
        (Some(host), _) => Some(host.clone()),
        (None, Some("*" | "0.0.0.0" | "[::]")) => {
            let expected = "given: engines need a host at which they reach this proxy";
            return Err(RecordError::Setting { setting: "--bind-host", expected }.into());
        }
        (None, Some("127.0.0.1" | "localhost" | "[::1]") | None) => None,
        (None, Some(host)) => Some(host.to_owned()),
    };
    Ok(RecordConfig {
        frontend_handshake: args.frontend_handshake.clone(),
        engine_handshake: args.engine_handshake.clone(),
        connect_timeout: args.connect_timeout,
        bind_host,
        kv_events: args.kv_events.clone(),
        out: args.out.clone(),
        replace: args.force,
        rotation: Rotation { size_bytes: args.rotate_size, time: args.rotate_time.map(Duration::from_nanos) },
        model: args.model.clone(),
        gpu: args.gpu.clone(),
        block_size_tokens: args.block_size,
        output_tokens: args.record_tokens,
        prompt_tokens: args.record_prompts,
        queue_bytes: args.queue_size.try_into().unwrap_or(usize::MAX),
    })
}

fn host_of(address: &str) -> Option<&str> {
    Some(address.strip_prefix("tcp://")?.rsplit_once(':')?.0)
}

/// Updates the progress lines of a recording.
fn show_progress(
    lines: &MultiProgress,
    summary: impl Fn() -> RecordSummary + Send + 'static,
) -> Result<ProgressBar, RecordError> {
    let style = ProgressStyle::with_template("{spinner} {msg}").unwrap_or(ProgressStyle::default_spinner());
    let bar = lines.add(ProgressBar::new_spinner().with_style(style));
    let shown = bar.clone();
    let show = move || {
        while !shown.is_finished() {
            let now = summary();
            shown.set_message(format!(
                "{} of {} requests done · {} tokens · {} steps · {} messages lost",
                now.requests, now.arrivals, now.tokens, now.steps, now.lost_messages,
            ));
            shown.tick();
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    std::thread::Builder::new().name("progress".to_owned()).spawn(show).map_err(RecordError::Thread)?;
    Ok(bar)
}

fn print_summary(summary: &RecordSummary, args: &RecordArgs) -> std::io::Result<()> {
    let mut out = anstream::stdout();
    if args.json {
        return writeln!(out, "{}", serde_json::to_string_pretty(summary)?);
    }
    if args.quiet {
        return Ok(());
    }
    let RecordSummary { requests, aborted, open, broken, tokens, steps, parts, http, .. } = summary;
    let aborts = format!(" ({aborted} aborted)");
    let (over_http, to_engines) = if *http > 0 { (aborts.as_str(), "") } else { ("", aborts.as_str()) };
    if *http > 0 {
        writeln!(out, "{}{over_http}", counted(*http, "exchange"))?;
    }
    writeln!(
        out,
        "{}{to_engines}, {}, {} in {}",
        counted(*requests, "request"),
        counted(*tokens, "token"),
        counted(*steps, "step"),
        counted(*parts, "file")
    )?;
    if open + broken > 0 {
        writeln!(out, "unfinished: {}; given up: {broken}", counted(*open, "request"))?;
    }
    let missing = [
        (summary.refused_inits, "INIT message", "refused"),
        (summary.lost_messages, "message", "not recorded"),
        (summary.left_out, "exchange", "recorded only up to --max-body-size"),
        (summary.without_lengths, "generation", "without lengths, because the answer has no usage: give --tokenizer"),
        (summary.keys, "possible key", "in strings: read the capture before you share it"),
        (summary.undecodable, "message", "undecodable"),
        (summary.breaks, "break", "in the traffic"),
    ];
    for (count, thing, what) in missing.into_iter().filter(|(count, ..)| *count > 0) {
        writeln!(out, "{} {what}", counted(count, thing))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_between_scheme_and_port() {
        assert_eq!(host_of("tcp://10.0.0.1:5580"), Some("10.0.0.1"));
        assert_eq!(host_of("tcp://[::1]:5580"), Some("[::1]"));
        assert_eq!(host_of("ipc:///tmp/a"), None);
    }
}
