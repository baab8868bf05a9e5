//! Recorded requests, before they are split into measurements and workload.

use vcr_trace::MediaItem;
use vcr_trace::capture::{FinishReason, RequestRecord};

use crate::measurements::emitted::Emitter;
use crate::measurements::measured::Measured;

/// A request, including the data that only the workload needs.
pub(crate) struct Row {
    pub(crate) measured: Measured,
    pub(crate) blocks: Vec<u64>,
    pub(crate) items: Vec<MediaItem>,
    pub(crate) session: Option<String>,
    pub(crate) think_ns: Option<u64>,
    pub(crate) priority: i32,
}

impl Row {
    pub(crate) fn new(record: RequestRecord) -> Result<Self, String> {
        let name = record.id.clone().or_else(|| record.external_id.clone());
        let Some(arrival_ns) = record.arrival_ns else {
            let which = name.map_or_else(String::new, |name| format!(" of request `{name}`"));
            return Err(format!("the arrival{which} is missing: expected a column such as `arrival_ms`"));
        };
        let times = record.output_times();
        // If only the time of the first token is known, the time of the last one is unknown.
        let is_last = |times: &[(u64, u32)]| times.len() > 1 || times[0].1 >= record.output_tokens;
        let times = times.filter(|times| !times.is_empty() && is_last(times));
        let last_ns = times.as_ref().and_then(|times| times.last()).map(|(after_ns, _)| *after_ns);
        // The end may come after the last token. Gaps only cover tokens.
        let e2e_ns = if record.gap_ns.is_empty() { record.end_ns.or(last_ns) } else { last_ns };
        let ended_badly = matches!(
            record.finish_reason.as_deref().and_then(FinishReason::parse),
            Some(FinishReason::Abort | FinishReason::Error)
        );
        let measured = Measured {
            arrival_ns,
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            ttft_ns: record.ttft_ns,
            e2e_ns,
            is_whole: !ended_badly && record.error.is_none() && record.ttft_ns.is_some() && record.output_tokens > 0,
            gaps_ns: if record.gap_tokens.is_none() { record.gap_ns } else { Vec::new() },
            queue_ns: record.queue_ns,
            cached_tokens: record.cached_tokens,
        };
        let blocks = record.block_hashes.iter().map(|hash| hash.0).collect();
        let priority = i32::try_from(record.priority).unwrap_or(0);
        Ok(Self {
            measured,
            blocks,
            items: record.mm_items,
            session: record.session,
            think_ns: record.think_ns,
            priority,
        })
    }
}

/// The times of a request's tokens. None unless each token came separately.
pub(crate) fn emitter(record: &RequestRecord) -> Option<Emitter> {
    let arrival_ns = record.arrival_ns?;
    let times = if record.output_tokens == 0 { Vec::new() } else { record.output_times()? };
    if record.gap_summary.is_some() || times.iter().any(|(_, tokens)| *tokens != 1) {
        return None;
    }
    Some(Emitter {
        rank: record.rank,
        prompt_tokens: record.prompt_tokens.max(1),
        cached_tokens: record.cached_tokens,
        admitted_ns: record.queue_ns.map(|queue_ns| arrival_ns.saturating_add(queue_ns)),
        token_ns: times.into_iter().map(|(after_ns, _)| arrival_ns.saturating_add(after_ns)).collect(),
        was_preempted: record.preemptions > 0,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(arrival_ns: u64) -> RequestRecord {
        RequestRecord {
            arrival_ns: Some(arrival_ns),
            prompt_tokens: 40,
            output_tokens: 3,
            ttft_ns: Some(30),
            gap_ns: vec![10, 12],
            end_ns: Some(60),
            ..RequestRecord::default()
        }
    }

    pub(crate) fn row(record: RequestRecord) -> Row {
        Row::new(record).expect("it can be used")
    }

    #[test]
    fn the_last_token_ends_a_request_where_tokens_are_known() {
        let measured = row(record(5)).measured;
        assert_eq!((measured.e2e_ns, measured.is_whole, measured.gaps_ns.len()), (Some(52), true, 2));
        let alone = RequestRecord { gap_ns: Vec::new(), ..record(5) };
        assert_eq!(row(alone.clone()).measured.e2e_ns, Some(60), "the end stands in for it");
        let unknown = RequestRecord { end_ns: None, ..alone };
        assert_eq!(row(unknown).measured.e2e_ns, None, "the first of three tokens is not the last");
        let chunks = RequestRecord { gap_ns: vec![10], gap_tokens: Some(vec![2]), ..record(5) };
        assert!(row(chunks).measured.gaps_ns.is_empty(), "gaps of two tokens are not gaps between tokens");
    }

    #[test]
    fn what_did_not_end_well_is_not_compared() {
        let aborted = RequestRecord { finish_reason: Some("abort".to_owned()), ..record(5) };
        let failed = RequestRecord { error: Some("out of memory".to_owned()), ..record(5) };
        let silent = RequestRecord { output_tokens: 0, ttft_ns: None, gap_ns: Vec::new(), ..record(5) };
        for record in [aborted, failed, silent] {
            assert!(!row(record).measured.is_whole);
        }
        let nowhere = RequestRecord { arrival_ns: None, id: Some("r7".to_owned()), ..record(5) };
        let said = Row::new(nowhere).err().expect("it is refused");
        assert!(said.contains("the arrival of request `r7` is missing"), "{said}");
    }
}
