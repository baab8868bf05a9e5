//! Writes Mooncake rows: the requests without their answers.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use crate::capture::{CaptureLine, CaptureMeta, NamedSessions, RequestRecord, TurnTimes};
use crate::{HashIdRange, ItemRange, Trace, TraceRequest, write_mooncake};

use super::{LineTally, flushed};
use crate::import::Note;

/// Mooncake's usual block size, used for captures without hashes.
const MOONCAKE_BLOCK_TOKENS: u32 = 512;

/// Collects requests. The rows are written in order of arrival.
pub(super) struct MooncakeExport<W: Write> {
    out: W,
    block_size_tokens: u32,
    requests: Vec<RequestRecord>,
    left_out: LineTally,
}

/// The key of a block: (whether it is partial, hash). A partial last block has the hash of the whole prompt.
type BlockKey = (bool, u64);

impl<W: Write> MooncakeExport<W> {
    pub(super) fn new(out: W, meta: &CaptureMeta) -> Self {
        let block_size_tokens = meta.block_size_tokens.unwrap_or(MOONCAKE_BLOCK_TOKENS).max(1);
        Self { out, block_size_tokens, requests: Vec::new(), left_out: LineTally::default() }
    }

    pub(super) fn add(&mut self, line: CaptureLine) {
        self.left_out.count(&line);
        if let CaptureLine::Request(mut request) = line {
            request.end_ns = request.duration_ns();
            (request.gap_ns, request.gap_tokens, request.steps) = (Vec::new(), None, None);
            request.prompt_token_ids = None;
            self.requests.push(*request);
        }
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<Note>> {
        self.requests = in_order(self.requests);
        let mut notes = self.left_out.notes();
        let count =
            |has: fn(&RequestRecord) -> bool| self.requests.iter().filter(|request| has(request)).count() as u64;
        for (what, count) in [
            ("requests lost their times", count(|request| request.ttft_ns.is_some() || request.end_ns.is_some())),
            ("requests lost their adapter", count(|request| request.lora.is_some())),
            ("requests lost images without places", count(|request| !request.mm_hashes.is_empty())),
        ] {
            if count > 0 {
                notes.push(Note { what: what.to_owned(), count });
            }
        }
        write_mooncake(&trace(&self.requests, self.block_size_tokens)?, &mut self.out)?;
        flushed(self.out)?;
        Ok(notes)
    }
}

/// Sorts requests by arrival. A turn with an unknown arrival follows its previous turn.
fn in_order(requests: Vec<RequestRecord>) -> Vec<RequestRecord> {
    let mut last_ns = 0;
    let mut sessions: BTreeMap<String, u64> = BTreeMap::new();
    let mut keyed: Vec<(u64, RequestRecord)> = Vec::with_capacity(requests.len());
    for request in requests {
        let before = request.session.as_ref().and_then(|session| sessions.get(session)).copied();
        let key_ns = request.arrival_ns.or(before).unwrap_or(last_ns);
        last_ns = key_ns;
        if let Some(session) = &request.session {
            sessions.insert(session.clone(), key_ns);
        }
        keyed.push((key_ns, request));
    }
    keyed.sort_by_key(|(key_ns, _)| *key_ns);
    keyed.into_iter().map(|(_, request)| request).collect()
}

fn trace(requests: &[RequestRecord], block_size_tokens: u32) -> io::Result<Trace> {
    let mut trace = Trace { block_size_tokens, ..Trace::default() };
    // The map is looked up, never iterated.
    let mut ids: HashMap<BlockKey, u32> = HashMap::new();
    let mut sessions = NamedSessions::new(false);
    for (index, request) in requests.iter().enumerate() {
        let name = request.session.as_deref();
        let previous = name.and_then(|name| sessions.add(name, index, turn_times(request)));
        let (session, turn) = match previous {
            Some((previous, _)) => (trace.requests[previous].session, trace.requests[previous].turn + 1),
            None => (trace.sessions, 0),
        };
        if let Some((previous, _)) = previous {
            trace.requests[previous].next_turn = Some(narrow(index)?);
        } else {
            trace.sessions += 1;
        }
        let hash_ids = push_ids(&mut trace, &mut ids, request, block_size_tokens)?;
        let start = narrow(trace.output_token_ids.len())?;
        trace.output_token_ids.extend(request.output_token_ids.iter().flatten());
        let len = narrow(trace.output_token_ids.len())? - start;
        let items = ItemRange { start: narrow(trace.items.len())?, len: narrow(request.mm_items.len())? };
        trace.items.extend_from_slice(&request.mm_items);
        narrow(trace.items.len())?;
        trace.requests.push(TraceRequest {
            request_id: request.external_id.as_deref().or(request.id.as_deref()).map(Into::into),
            line: 0,
            session,
            turn,
            next_turn: None,
            arrival_ns: request.arrival_ns.filter(|_| turn == 0),
            delay_ns: previous.map_or(0, |(_, think_ns)| think_ns),
            dependencies: ItemRange::default(),
            input_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            hash_ids,
            output_token_ids: ItemRange { start, len },
            items,
            priority: i32::try_from(request.priority).unwrap_or_default(),
            strict_priority: 0,
            policy_class: None,
        });
    }
    trace.distinct_hash_ids = narrow(ids.len())?;
    Ok(trace)
}

fn turn_times(request: &RequestRecord) -> TurnTimes {
    TurnTimes { arrival_ns: request.arrival_ns, duration_ns: request.end_ns, think_ns: request.think_ns }
}

fn push_ids(
    trace: &mut Trace,
    ids: &mut HashMap<BlockKey, u32>,
    request: &RequestRecord,
    block_size_tokens: u32,
) -> io::Result<HashIdRange> {
    let mut prompt = Vec::new();
    let blocks = (request.prompt_tokens.div_ceil(block_size_tokens)) as usize;
    let full = (request.prompt_tokens / block_size_tokens) as usize;
    if request.block_hashes.len() == full && (full > 0 || request.prompt_hash.is_some()) {
        let mut keys: Vec<Option<BlockKey>> = request.block_hashes.iter().map(|hash| Some((false, hash.0))).collect();
        // A partial block with unknown content gets its own id.
        keys.resize(blocks, request.prompt_hash.map(|hash| (true, hash.0)));
        for key in keys {
            let next = narrow(ids.len())?;
            let key = key.unwrap_or((true, u64::from(next) | 1 << 63));
            prompt.push(*ids.entry(key).or_insert(next));
        }
    }
    Ok(trace.hash_ids.push(prompt))
}

fn narrow(count: usize) -> io::Result<u32> {
    let too_many = || io::Error::other("a Mooncake trace cannot have more than 4,294,967,295 ids; split the capture");
    u32::try_from(count).map_err(|_| too_many())
}
