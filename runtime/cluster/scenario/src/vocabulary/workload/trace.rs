//! Workloads that replay a trace.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use vcr_cluster::{Answers, ProfileConfig, TracePacing, WorkloadConfig, WorkloadSource};
use vcr_trace::import::{ImportError, read_trace};
use vcr_trace::{
    Format, FormatOption, HashIdScope, NestedTimestamps, Sessions, SharedPrefix, Strictness, TimestampUnit, Trace,
    TraceError, TraceOptions,
};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::Options;
use crate::vocabulary::workload::clients::common;

/// A constant seed, because traces must not depend on the seed of the run.
const PREFIX_GROUP_SEED: u64 = 42;

pub(super) fn make_trace(context: &Context, mut options: Options<'_>) -> Scripted<WorkloadConfig> {
    let named = Format::ALL.into_iter().flat_map(|format| {
        let names = std::iter::once(format.name()).chain(format.aliases().iter().copied());
        names.map(move |name| (name, Some(format)))
    });
    let formats: Vec<_> = std::iter::once(("auto", None)).chain(named).collect();
    let answers = [("simulated", Answers::Simulated), ("recorded", Answers::Recorded)];
    let answers = options.choice("answers", &answers).unwrap_or_default();
    let calls = options.choice("bodies", &[("drawn", false), ("recorded", true)]).unwrap_or_default();
    let paths = options.strings("path");
    let paths = options.required("path", paths);
    let concurrency = options.u64("concurrency");
    let speedup = options.f64("speedup");
    if concurrency.is_some() && speedup.is_some() {
        options.problem("speedup", "`speedup` scales recorded arrivals, which a trace with `concurrency` ignores");
    }
    let profile = profile(&mut options);
    if concurrency.is_some() && profile.is_some() {
        options.problem("lanes", "`lanes` and `concurrency` both say what is in flight; give one of them");
    }
    let pacing = match (profile, concurrency) {
        (Some(profile), _) => TracePacing::Profile(ProfileConfig { speedup: speedup.unwrap_or(1.0), ..profile }),
        (None, Some(concurrency)) => TracePacing::ClosedLoop { concurrency, speedup: 1.0 },
        (None, None) => TracePacing::Recorded { speedup: speedup.unwrap_or(1.0) },
    };
    let block_size_tokens = options.u32("block_size").map(|block_size| {
        NonZeroU32::new(block_size).unwrap_or_else(|| {
            options.problem("block_size", "invalid `block_size`: expected at least 1");
            NonZeroU32::MIN
        })
    });
    let is_lenient = options.boolean("lenient").unwrap_or(false);
    let is_strict = options.boolean("strict").unwrap_or(false);
    if is_lenient && is_strict {
        options.problem("strict", "`strict` refuses what `lenient` repairs; give one of them");
    }
    let strictness = match (is_lenient, is_strict) {
        (true, _) => Strictness::Lenient,
        (_, true) => Strictness::Strict,
        _ => Strictness::Standard,
    };
    let scopes = [("trace", HashIdScope::Trace), ("play", HashIdScope::Play), ("session", HashIdScope::Session)];
    let shared_prefix = SharedPrefix {
        ratio: options.f64("shared_prefix_ratio").unwrap_or(0.0),
        groups: options.u32("prefix_groups").unwrap_or(0),
        seed: PREFIX_GROUP_SEED,
    };
    let read = TraceOptions {
        format: options.choice("format", &formats).flatten(),
        format_option: Some(FormatOption { format: "format", timestamp_unit: Some("timestamp_unit") }),
        block_size_tokens,
        timestamp_unit: options.choice("timestamp_unit", &TimestampUnit::ALL).unwrap_or_default(),
        strictness,
        first_timestamp_required: concurrency.is_none() && profile.is_none(),
        answer_times: answers == Answers::Recorded,
        calls,
        sessions: options.choice("sessions", &Sessions::ALL).unwrap_or_default(),
        hash_id_scope: options.choice("hash_id_scope", &scopes),
        nested_timestamps: options.choice("nested_timestamps", &NestedTimestamps::ALL).unwrap_or_default(),
        shared_prefix,
    };
    let start_ns = options.duration_ns("start").unwrap_or(0);
    let copies = options.u32("copies").unwrap_or(1);
    let requests = options.u32("requests");
    if requests == Some(0) {
        options.problem("requests", "invalid `requests`: expected at least 1");
    }
    let stagger_ns = options.duration_ns("stagger").unwrap_or(0);
    let of = common("trace", &mut options);
    let call = options.call_position();
    options.finish()?;
    for path in &paths {
        context.reads(&context.resolve(path)).map_err(|thrown| thrown.at(call))?;
    }
    let trace = open_trace(context, &paths, &read, requests).map_err(|error| {
        let thrown = Thrown::input(error.to_string());
        let of_row = matches!(error, ImportError::Trace(TraceError::Row { .. }));
        let hint = "the `block_size` of `trace` is the number of tokens of one hash id; `lenient: true` cuts prompts to their ids";
        if of_row { thrown.hint(hint) } else { thrown }.at(call)
    })?;
    if answers == Answers::Recorded && trace.answer_times.iter().all(Option::is_none) {
        let hint = "only captures hold times, as `vcr record` makes them; leave `answers` out to simulate them";
        return Err(Thrown::input(format!("{} has no times of its answers", paths.join(", "))).hint(hint).at(call));
    }
    if calls && trace.calls.iter().all(Option::is_none) {
        let hint = "only captures of HTTP hold them, as `vcr record --upstream` makes them; leave `bodies` out to draw prompts";
        return Err(Thrown::input(format!("{} has no requests of HTTP", paths.join(", "))).hint(hint).at(call));
    }
    let source = WorkloadSource::Trace { trace, pacing, copies, stagger_ns, answers };
    Ok(of.workload(start_ns, source))
}

fn profile(options: &mut Options<'_>) -> Option<ProfileConfig> {
    let lanes = options.u32("lanes");
    let snapshot_seed = options.u64("snapshot_seed");
    let warmup_requests = options.u32("warmup_requests");
    let duration_ns = options.duration_ns("duration");
    let grace_ns = options.duration_ns("grace");
    let play_idle_cap_ns = options.duration_ns("play_idle_cap");
    let idle_cap_ns = options.duration_ns("idle_cap");
    let given = [
        ("snapshot_seed", snapshot_seed.is_some()),
        ("warmup_requests", warmup_requests.is_some()),
        ("duration", duration_ns.is_some()),
        ("grace", grace_ns.is_some()),
        ("play_idle_cap", play_idle_cap_ns.is_some()),
        ("idle_cap", idle_cap_ns.is_some()),
    ];
    let Some(lanes) = lanes else {
        for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            options.problem(name, format!("`{name}` is for a trace with `lanes`"));
        }
        return None;
    };
    Some(ProfileConfig {
        snapshot_seed,
        warmup_requests: warmup_requests.unwrap_or(0),
        duration_ns,
        grace_ns: grace_ns.unwrap_or(0),
        play_idle_cap_ns,
        idle_cap_ns,
        ..ProfileConfig::new(lanes)
    })
}

/// Reads a trace or its first requests. A trace that the scenario names repeatedly is read once.
pub(crate) fn open_trace(
    context: &Context,
    paths: &[String],
    options: &TraceOptions,
    requests: Option<u32>,
) -> Result<Arc<Trace>, ImportError> {
    for path in paths {
        context.state().inputs.named("trace", path, context.resolve(path));
    }
    let paths: Vec<PathBuf> = paths.iter().map(|path| context.resolve(path)).collect();
    let key = (paths.clone(), format!("{requests:?} {options:?}"));
    context.loaded.trace(key, || {
        let trace = read_trace(&paths, options)?;
        let trace = Arc::new(match requests {
            Some(count) => trace.first(count as usize),
            None => trace,
        });
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        for warning in &trace.warnings {
            context.reporter.warn(&format!("{}: {warning}", names.join(", ")));
        }
        Ok(trace)
    })
}
