//! Workloads without answers that `vcr replay` can also read: Mooncake rows, tables, chats, sessions of tool calls.

use std::io::BufRead;
use std::num::NonZeroU32;
use std::path::Path;

use crate::capture::{CaptureMeta, Holds, RequestRecord};
use crate::{Strictness, Trace, TraceError, TraceOptions, TraceRequest};
use serde_json::{Map, Value, json};

use crate::import::output::Out;
use crate::import::{Format, ImportError, ImportOptions, chain};

const VLLM_BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).expect("it is not zero");

/// The field of a workload's meta line that says that there are no answers.
pub(crate) fn as_workload() -> Map<String, Value> {
    Map::from_iter([("workload".to_owned(), json!(true))])
}

pub(crate) fn read(
    reader: impl BufRead,
    name: &str,
    format: Format,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    read_by(|trace_options| Trace::read(reader, name, format, trace_options), format, options, out)
}

pub(crate) fn read_folder(
    path: &Path,
    format: Format,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let open = |trace_options: &TraceOptions| {
        Trace::open(path, &TraceOptions { format: Some(format), ..trace_options.clone() })
    };
    read_by(open, format, options, out)
}

fn read_by(
    read: impl FnOnce(&TraceOptions) -> Result<Trace, TraceError>,
    format: Format,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let usual_block = (format == Format::AppliedComputeAgentic).then_some(VLLM_BLOCK_TOKENS);
    let trace_options = TraceOptions {
        block_size_tokens: options.block_size_tokens.or(usual_block),
        strictness: if options.lenient { Strictness::Lenient } else { Strictness::Standard },
        first_timestamp_required: false,
        ..TraceOptions::default()
    };
    add(&read(&trace_options)?, format, out)
}

fn add(trace: &Trace, format: Format, out: &mut Out<'_>) -> Result<(), ImportError> {
    for warning in &trace.warnings {
        out.tally.notes_of(&format!("rows with a warning: {warning}"), u64::from(warning.rows));
    }
    // A capture cannot contain these links. Sessions and arrivals are kept.
    let links = match format {
        Format::QwenBailian => "links from a chat to the chat it continues",
        _ => "dependencies between requests",
    };
    out.tally.notes_of(links, trace.dependencies.len() as u64);
    let has_answers = !trace.output_token_ids.is_empty();
    let block_size_tokens = NonZeroU32::new(trace.block_size_tokens).filter(|_| !trace.hash_ids.is_empty());
    out.meta(
        format,
        CaptureMeta {
            block_size_tokens: block_size_tokens.map(NonZeroU32::get),
            holds: Holds { output_tokens: has_answers, ..Holds::default() },
            other: as_workload(),
            ..CaptureMeta::default()
        },
    )?;
    for request in &trace.requests {
        let record = record(trace, request);
        out.request(record)?;
    }
    Ok(())
}

fn record(trace: &Trace, request: &TraceRequest) -> RequestRecord {
    let ids = trace.hash_ids(request);
    let (block_hashes, prompt_hash) =
        chain::of_ids(ids.iter().map(u64::from), request.input_tokens, trace.block_size_tokens);
    let answer = trace.output_token_ids(request);
    let mut params = Map::new();
    params.insert("max_tokens".to_owned(), json!(request.output_tokens));
    if request.strict_priority != 0 {
        params.insert("strict_priority".to_owned(), json!(request.strict_priority));
    }
    if let Some(class) = trace.policy_class(request) {
        params.insert("policy_class".to_owned(), json!(class));
    }
    let in_session = request.turn > 0 || request.next_turn.is_some() || trace.has_free_turns;
    RequestRecord {
        id: request.request_id.as_deref().map(str::to_owned),
        arrival_ns: request.arrival_ns,
        think_ns: (request.turn > 0 && !trace.has_free_turns).then_some(request.delay_ns),
        prompt_tokens: request.input_tokens,
        block_hashes,
        prompt_hash: (!ids.is_empty()).then_some(prompt_hash),
        output_tokens: request.output_tokens,
        output_token_ids: (!answer.is_empty()).then(|| answer.to_vec()),
        params,
        mm_items: trace.items(request).to_vec(),
        priority: i64::from(request.priority),
        session: in_session.then(|| format!("s{}", request.session)),
        ..RequestRecord::default()
    }
}
