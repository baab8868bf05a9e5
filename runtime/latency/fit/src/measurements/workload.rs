//! Measured requests as a workload: their content, and the order of turns.

use std::collections::HashMap;

use vcr_trace::{ItemRange, Trace, TraceRequest};

use crate::measurements::measured::Measured;
use crate::measurements::row::Row;

/// Gives prompts a common beginning of the length of their cached tokens, if only that number is known.
pub(crate) fn share_cached(rows: &mut [Row], block_size_tokens: u32, name: &str, warnings: &mut Vec<String>) {
    let cached = rows.iter().filter(|row| row.measured.cached_tokens > 0).count();
    if cached == 0 {
        return;
    }
    warnings.push(format!(
        "{name}: {cached} requests have cached tokens but no hash ids; their prompts are taken to begin alike"
    ));
    for row in rows {
        let blocks = u64::from(row.measured.cached_tokens / block_size_tokens);
        row.blocks = (1..=blocks).collect();
    }
}

pub(crate) fn workload(rows: &[Row], block_size_tokens: u32, with_sessions: bool) -> Trace {
    let mut trace = Trace { block_size_tokens, ..Trace::default() };
    let mut dense: HashMap<u64, u32> = HashMap::new();
    let mut next_id = 0;
    let mut new_id = || {
        next_id += 1;
        next_id - 1
    };
    // Index of the last request of each session so far.
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        let Measured { arrival_ns, prompt_tokens, output_tokens, .. } = row.measured;
        let full = prompt_tokens / block_size_tokens;
        let known = row.blocks.iter().take(full as usize);
        let mut ids: Vec<u32> = known.map(|hash| *dense.entry(*hash).or_insert_with(&mut new_id)).collect();
        let len = if row.blocks.is_empty() { 0 } else { prompt_tokens.div_ceil(block_size_tokens) };
        ids.resize_with(ids.len().max(len as usize), &mut new_id);
        let hash_ids = trace.hash_ids.push(ids);
        let items = ItemRange { start: trace.items.len() as u32, len: row.items.len() as u32 };
        trace.items.extend_from_slice(&row.items);
        let before = row.session.as_deref().filter(|_| with_sessions);
        let before = before.and_then(|session| open.insert(session, index));
        let (session, turn, delay_ns) = match before {
            Some(before) => {
                let previous = &rows[before].measured;
                let end_ns = previous.arrival_ns.saturating_add(previous.e2e_ns.unwrap_or(0));
                let think_ns = row.think_ns.unwrap_or_else(|| arrival_ns.saturating_sub(end_ns));
                trace.requests[before].next_turn = Some(index as u32);
                (trace.requests[before].session, trace.requests[before].turn + 1, think_ns)
            }
            None => {
                trace.sessions += 1;
                (trace.sessions - 1, 0, 0)
            }
        };
        trace.requests.push(TraceRequest {
            request_id: None,
            line: index as u32 + 1,
            session,
            turn,
            next_turn: None,
            arrival_ns: (turn == 0).then_some(arrival_ns),
            delay_ns,
            input_tokens: prompt_tokens,
            output_tokens,
            dependencies: ItemRange::default(),
            hash_ids,
            output_token_ids: ItemRange::default(),
            items,
            priority: row.priority,
            strict_priority: 0,
            policy_class: None,
        });
    }
    trace.distinct_hash_ids = next_id;
    trace.session_ids = vec![None; trace.sessions as usize];
    trace
}

#[cfg(test)]
mod tests {
    use vcr_trace::MediaItem;
    use vcr_trace::capture::{BlockHash, RequestRecord};

    use super::*;
    use crate::measurements::row::tests::{record, row};

    #[test]
    fn prompts_share_what_their_hashes_share() {
        let with = |hashes: &[u64]| {
            row(RequestRecord { block_hashes: hashes.iter().copied().map(BlockHash).collect(), ..record(5) })
        };
        let trace = workload(&[with(&[70, 80]), with(&[70, 90])], 16, false);
        assert_eq!((trace.sessions, trace.block_size_tokens), (2, 16));
        // Two full blocks of 16 tokens within 40 tokens are shared. The rest differs.
        let [one, other] = [0, 1].map(|index| trace.hash_ids(&trace.requests[index]).to_vec());
        assert_eq!((one.len(), other.len()), (3, 3));
        assert_eq!([0, 1, 2].map(|block| one[block] == other[block]), [true, false, false]);
    }

    #[test]
    fn prompts_keep_their_multimodal_items() {
        let item = |hash: &str| MediaItem { hash: hash.to_owned(), offset: 3, tokens: 9, ..MediaItem::default() };
        let of = |mm_items| row(RequestRecord { mm_items, ..record(5) });
        let trace = workload(&[of(vec![item("cat")]), of(Vec::new()), of(vec![item("dog")])], 16, false);
        let items = |index: usize| trace.items(&trace.requests[index]);
        assert_eq!((items(0), items(1), items(2)), (&[item("cat")][..], &[][..], &[item("dog")][..]));
    }

    #[test]
    fn cached_tokens_alone_make_prompts_begin_alike() {
        let mut rows = vec![row(record(5)), row(RequestRecord { cached_tokens: 33, ..record(9) })];
        let mut warnings = Vec::new();
        share_cached(&mut rows, 16, "file", &mut warnings);
        assert_eq!((rows[0].blocks.as_slice(), rows[1].blocks.as_slice()), (&[][..], &[1, 2][..]));
        assert!(warnings[0].starts_with("file: 1 requests have cached tokens but no hash ids"), "{warnings:?}");
    }

    #[test]
    fn turns_of_a_session_wait_for_each_other() {
        let turn = |arrival_ns| row(RequestRecord { session: Some("s".to_owned()), ..record(arrival_ns) });
        let rows = [turn(0), turn(100)];
        let trace = workload(&rows, 16, true);
        assert_eq!((trace.sessions, trace.requests[0].next_turn, trace.requests[1].turn), (1, Some(1), 1));
        assert_eq!((trace.requests[1].arrival_ns, trace.requests[1].delay_ns), (None, 100 - 52));
        let literal = workload(&rows, 16, false);
        assert_eq!((literal.sessions, literal.requests[1].arrival_ns), (2, Some(100)));
    }
}
