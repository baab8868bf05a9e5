//! KV that moves between prefill and decode engines, in name and in time.
//!
//! The parameters are those of vLLM's NIXL connector. The prefill engine holds
//! a finished prompt's blocks until a decode engine says that it has read
//! them, or their lease is over; the decode engine waits as long as the moving
//! would take.

use std::collections::HashMap;

use vcr_core::RequestId;
use vcr_random::Stream;
use vcr_wire::{Line, LinkError, NoticeBoard, NoticeSender, Transport, Value};

use crate::config::TransferSettings;
use crate::requests::RemoteKv;

/// What a request says of its KV.
#[derive(Clone, Debug)]
pub(crate) enum KvParams {
    /// Another engine will fetch it.
    DecodeElsewhere,
    /// Another engine has it.
    PrefillElsewhere(RemoteKv),
    /// It should be elsewhere, but these keys are missing.
    Incomplete(Vec<&'static str>),
    /// Nothing special.
    Local,
}

impl KvParams {
    pub(crate) fn of(params: &Value) -> Self {
        let is_set = |key: &str| params.get(key).and_then(Value::as_bool) == Some(true);
        if is_set("do_remote_prefill") {
            return Self::remote(params);
        }
        if is_set("do_remote_decode") { Self::DecodeElsewhere } else { Self::Local }
    }

    fn remote(params: &Value) -> Self {
        const NEEDED: [&str; 5] =
            ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"];
        let get = |key: &str| params.get(key).filter(|value| **value != Value::Nil);
        let missing: Vec<_> = NEEDED.into_iter().filter(|key| get(key).is_none()).collect();
        let host = get("remote_host").and_then(Value::as_str);
        let port = get("remote_port").and_then(Value::as_u64);
        let request_id = get("remote_request_id").and_then(Value::as_str);
        match (host, port, request_id) {
            (Some(host), Some(port), Some(request_id)) if missing.is_empty() => Self::PrefillElsewhere(RemoteKv {
                address: format!("tcp://{host}:{port}"),
                request_id: request_id.to_owned(),
            }),
            _ => Self::Incomplete(missing),
        }
    }
}

/// Blocks that a decode engine may fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) core: RequestId,
    pub(crate) until_ns: u64,
}

/// One engine's part in transfers.
pub(crate) struct Transfers {
    settings: TransferSettings,
    engine_id: String,
    port: u16,
    board: Option<NoticeBoard>,
    sender: NoticeSender,
    /// By the request's internal name.
    held: HashMap<String, Held>,
    /// The earliest end of a lease, or before it.
    next_lease_end_ns: Option<u64>,
    draws: Stream,
}

impl Transfers {
    pub(crate) fn new(settings: &TransferSettings, transport: &Transport, rank: u16, ranks: u16, seed: u64) -> Self {
        let engine_id = if ranks > 1 { format!("{}_dp{rank}", settings.engine_id) } else { settings.engine_id.clone() };
        Self {
            settings: settings.clone(),
            engine_id,
            port: settings.side_channel_port.wrapping_add(rank),
            board: None,
            sender: NoticeSender::new(transport),
            held: HashMap::new(),
            next_lease_end_ns: None,
            draws: Stream::new(seed, "live.transfers"),
        }
    }

    pub(crate) fn board(&self) -> Option<&NoticeBoard> {
        self.board.as_ref()
    }

    pub(crate) fn num_held(&self) -> usize {
        self.held.len()
    }

    /// What moving so many tokens takes.
    pub(crate) fn duration_ns(&mut self, tokens: u32) -> u64 {
        let settings = &self.settings;
        let mean_ns = settings.latency_ns.saturating_add(settings.per_token_ns.saturating_mul(tokens.into()));
        if settings.std_dev_ns == 0 {
            return mean_ns;
        }
        (mean_ns as f64 + self.draws.normal() * settings.std_dev_ns as f64).max(0.0) as u64
    }

    /// Holds the blocks of a finished prompt, and gives what the decode engine
    /// must know. Listens for notices from now on.
    ///
    /// # Errors
    /// When the side channel's address is in use.
    pub(crate) fn hold(
        &mut self,
        transport: &Transport,
        finished: &Finished<'_>,
        now_ns: u64,
    ) -> Result<Value, LinkError> {
        if self.board.is_none() {
            let address = format!("tcp://{}:{}", self.settings.side_channel_host, self.port);
            self.board = Some(NoticeBoard::bind(transport, &address)?);
        }
        let until_ns = now_ns.saturating_add(self.settings.lease_ns);
        self.held.insert(finished.id.to_owned(), Held { core: finished.core, until_ns });
        self.next_lease_end_ns = Some(self.next_lease_end_ns.map_or(until_ns, |next_ns| next_ns.min(until_ns)));
        Ok(self.params(finished))
    }

    /// Everything that any line's connector says, and no more than this one's.
    fn params(&self, finished: &Finished<'_>) -> Value {
        let text = |text: &str| Value::Str(text.to_owned());
        let blocks = finished.blocks.iter().map(|block| Value::from(u64::from(*block))).collect();
        let mut pairs = vec![
            ("do_remote_prefill", Value::Bool(true)),
            ("do_remote_decode", Value::Bool(false)),
            ("remote_block_ids", Value::Array(vec![Value::Array(blocks)])),
            ("remote_engine_id", text(&self.engine_id)),
            ("remote_request_id", text(finished.id)),
            ("remote_host", text(&self.settings.side_channel_host)),
            ("remote_port", Value::from(u64::from(self.port))),
            ("tp_size", Value::from(u64::from(finished.tensor_parallel_size))),
            ("remote_num_tokens", Value::from(u64::from(finished.num_tokens))),
            ("remote_blocks_expiry_time", Value::Nil),
        ];
        let of_lines = [
            ("transfer_mode", text("pull")),
            ("dcp_size", Value::from(1u64)),
            ("pp_size", Value::from(1u64)),
            ("remote_prefill_cached_tokens", Value::from(u64::from(finished.cached_tokens))),
            ("remote_registration_generation", Value::from(0u64)),
        ];
        let known = &finished.line.rules().kv_transfer_keys;
        pairs.extend(of_lines.into_iter().filter(|(key, _)| known.iter().any(|other| other == key)));
        Value::Map(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
    }

    /// Tells the engine that computed a prompt that its KV has been read.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub(crate) fn tell(&mut self, remote: &RemoteKv) -> Result<(), LinkError> {
        self.sender.send(&remote.address, &remote.request_id)
    }

    /// Blocks that nobody needs any more: read, or their lease over.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn released(&mut self, now_ns: u64, released: &mut Vec<(RequestId, bool)>) -> Result<(), LinkError> {
        if let Some(board) = &self.board {
            while let Some(id) = board.try_receive()? {
                if let Some(held) = self.held.remove(&id) {
                    released.push((held.core, false));
                }
            }
        }
        if self.next_lease_end_ns.is_some_and(|end_ns| end_ns <= now_ns) {
            let mut over: Vec<_> = self.held.extract_if(|_, held| held.until_ns <= now_ns).collect();
            over.sort_by(|one, other| one.0.cmp(&other.0));
            released.extend(over.into_iter().map(|(_, held)| (held.core, true)));
            self.next_lease_end_ns = self.held.values().map(|held| held.until_ns).min();
        }
        Ok(())
    }

    /// When a lease may end.
    pub(crate) fn next_lease_end_ns(&self) -> Option<u64> {
        self.next_lease_end_ns
    }
}

/// A finished prompt.
pub(crate) struct Finished<'a> {
    pub(crate) id: &'a str,
    pub(crate) core: RequestId,
    pub(crate) blocks: &'a [u32],
    pub(crate) num_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) tensor_parallel_size: u32,
    pub(crate) line: Line,
}
