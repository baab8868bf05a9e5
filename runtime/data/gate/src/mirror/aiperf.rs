//! Reads `profile_export.jsonl` of aiperf.
//!
//! The file contains no outputs. Each run generates new request ids, so runs are matched by a request's position in
//! its conversation.

use std::io::BufRead;
use std::ops::ControlFlow;

use vcr_trace::import::{AiperfRequest, Outputs};

use super::fields::error_class;
use super::{Out, each_line};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let name = out.name.clone();
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let request = AiperfRequest::parse(bytes).map_err(|problem| out.problem(problem, place))?;
        let Some(request) = request else { return Ok(ControlFlow::Continue(())) };
        let tokens = request.output_tokens.map(u64::from);
        let observation = observation(request, line).map_err(|problem| out.problem(problem, place))?;
        out.add(observation, tokens, place)
    })
}

fn observation(request: AiperfRequest, line: u64) -> Result<Observation<'static>, Problem> {
    let missing = || Problem::new("metrics.request_latency", "the metric is missing, and so are the start and the end");
    let latency_ns = request.latency_ns.ok_or_else(missing)?;
    let cancelled = request.was_cancelled.then(|| "cancelled".to_owned());
    let error = request.error.as_ref().map(error_class).or(cancelled);
    let conversation = request.conversation_id.or(request.session_num);
    let turn = request.turn.unwrap_or_default();
    let ttft_ns = request.ttft_ns.filter(|ttft_ns| *ttft_ns <= latency_ns);
    let tokens = request.output_tokens.filter(|tokens| *tokens > 0 && error.is_none());
    let pieces = ttft_ns.zip(request.gaps_ns).zip(tokens);
    let outputs = pieces.map(|((first_ns, gaps_ns), tokens)| Outputs::of_pieces(first_ns, gaps_ns, tokens));
    let event_ns = outputs.as_ref().map(Outputs::after_ns);
    let last_ns = event_ns.as_ref().and_then(|events| events.last().copied());
    Ok(Observation {
        request_id: request.id.unwrap_or_else(|| format!("line {line}")).into(),
        content: conversation.map(|conversation| format!("{conversation}/{turn}").into()),
        ok: error.is_none(),
        error: error.map(Into::into),
        latency_ns: Some(latency_ns).max(last_ns),
        ttft_ns: ttft_ns.filter(|_| event_ns.is_none()),
        mean_gap_ns: request.mean_gap_ns.filter(|_| event_ns.is_none()),
        event_ns,
        event_tokens: outputs.map(|outputs| outputs.tokens).filter(|tokens| !tokens.is_empty()),
        replica: request.worker.map(Into::into),
        ..Observation::default()
    })
}
