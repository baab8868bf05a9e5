//! Simulated KV transfers between prefill and decode engines.
//!
//! The parameters are those of vLLM's NIXL connector. The prefill engine holds
//! a finished prompt's blocks until a decode engine notifies it, or until their
//! lease expires; the decode engine waits for the simulated duration.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use vcr_core::RequestId;
use vcr_core::seed::derive;
use vcr_random::Stream;
use vcr_wire::{LinkError, NoticeBoard, Transport, Value, VllmMinor};

use crate::config::TransferSettings;
use crate::context::Context;
use crate::kv_transfer::peers::{AllowedPeers, PeerSockets};
use crate::requests::RemoteKv;

/// The place of a request's KV, by its `kv_transfer_params`.
#[derive(Clone, Debug)]
pub(crate) enum KvParams {
    /// A decode engine will fetch it.
    DecodeElsewhere,
    /// A prefill engine holds it.
    PrefillElsewhere(RemoteKv),
    /// A prefill engine should hold it, but these keys are missing.
    Incomplete(Vec<&'static str>),
    /// A prefill engine at this host, which requests may not name.
    Refused(String),
    /// This engine only.
    Local,
}

impl KvParams {
    pub(crate) fn of(params: &Value, allowed: &AllowedPeers) -> Self {
        let is_set = |key: &str| params.get(key).and_then(Value::as_bool) == Some(true);
        if is_set("do_remote_prefill") {
            return Self::remote(params, allowed);
        }
        if is_set("do_remote_decode") { Self::DecodeElsewhere } else { Self::Local }
    }

    fn remote(params: &Value, allowed: &AllowedPeers) -> Self {
        const NEEDED: [&str; 5] =
            ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"];
        let get = |key: &str| params.get(key).filter(|value| **value != Value::Nil);
        let missing: Vec<_> = NEEDED.into_iter().filter(|key| get(key).is_none()).collect();
        let host = get("remote_host").and_then(Value::as_str);
        let port = get("remote_port").and_then(Value::as_u64);
        let request_id = get("remote_request_id").and_then(Value::as_str);
        match (host, port, request_id) {
            (Some(host), Some(_), Some(_)) if missing.is_empty() && !allowed.contains(host) => {
                Self::Refused(host.to_owned())
            }
            (Some(host), Some(port), Some(request_id)) if missing.is_empty() => Self::PrefillElsewhere(RemoteKv {
                address: format!("tcp://{host}:{port}"),
                request_id: request_id.to_owned(),
            }),
            _ => Self::Incomplete(missing),
        }
    }
}

/// Held blocks of a finished prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) core: RequestId,
    pub(crate) until_ns: u64,
}

/// One engine's part in transfers.
pub(crate) struct Transfers {
    settings: TransferSettings,
    rank: u16,
    engine_id: String,
    port: u16,
    transport: Transport,
    /// Notices of decode engines, once a prompt was held.
    notices: Option<NoticeBoard>,
    allowed: AllowedPeers,
    peers: PeerSockets,
    /// By the request's internal name.
    held: HashMap<String, Held>,
    /// The earliest end of a lease; possibly of one that is released already.
    next_lease_end_ns: Option<u64>,
    /// Transfers to this engine: their ends, and the tags of the requests.
    loads: BinaryHeap<Reverse<(u64, u64)>>,
    /// Kept for its memory.
    released: Vec<(RequestId, bool)>,
    draws: Stream,
}

impl Transfers {
    /// `peer_transport` is for connections to other engines alone.
    pub(crate) fn new(context: &Context, transport: Transport, peer_transport: Transport) -> Self {
        let (settings, rank) = (&context.config.transfer, context.rank);
        let ranks = context.config.identity.num_ranks;
        let seed = derive(context.config.seed, "live.transfers", rank.into());
        let engine_id = if ranks > 1 { format!("{}_dp{rank}", settings.engine_id) } else { settings.engine_id.clone() };
        Self {
            settings: settings.clone(),
            rank,
            engine_id,
            port: settings.side_channel_port.wrapping_add(rank),
            transport,
            notices: None,
            allowed: AllowedPeers::new(&settings.side_channel_host, &settings.allowed_peers),
            peers: PeerSockets::new(peer_transport),
            held: HashMap::new(),
            next_lease_end_ns: None,
            loads: BinaryHeap::new(),
            released: Vec::new(),
            draws: Stream::new(seed, "live.transfers"),
        }
    }

    /// The hosts that requests may name.
    pub(crate) fn allowed_peers(&self) -> &AllowedPeers {
        &self.allowed
    }

    /// Where notices of decode engines arrive.
    pub(crate) fn notices(&self) -> Option<&NoticeBoard> {
        self.notices.as_ref()
    }

    pub(crate) fn num_held(&self) -> usize {
        self.held.len()
    }

    /// Starts to move the KV of a request to this engine.
    pub(crate) fn start_load(&mut self, tag: u64, tokens: u32, time_scale: f64, now_ns: u64) {
        if let Some(link) = &self.settings.shared_link {
            return link.start(self.rank, tag, tokens, now_ns);
        }
        let duration_ns = self.duration_ns(tokens) as f64 / time_scale;
        self.loads.push(Reverse((now_ns.saturating_add(duration_ns as u64), tag)));
    }

    /// A request whose KV has arrived by now.
    pub(crate) fn next_loaded(&mut self, now_ns: u64) -> Option<u64> {
        if let Some(link) = &self.settings.shared_link {
            return link.next_arrived(self.rank, now_ns);
        }
        let &Reverse((due_ns, tag)) = self.loads.peek()?;
        (due_ns <= now_ns).then(|| {
            self.loads.pop();
            tag
        })
    }

    /// When the next transfer ends; on a shared link it may end later.
    pub(crate) fn next_load_ns(&self) -> Option<u64> {
        if let Some(link) = &self.settings.shared_link {
            return link.next_arrival_ns(self.rank);
        }
        self.loads.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// The duration of moving N tokens.
    fn duration_ns(&mut self, tokens: u32) -> u64 {
        let settings = &self.settings;
        let mean_ns = settings.latency_ns.saturating_add(settings.per_token_ns.saturating_mul(tokens.into()));
        if settings.std_dev_ns == 0 {
            return mean_ns;
        }
        (mean_ns as f64 + self.draws.normal() * settings.std_dev_ns as f64).max(0.0) as u64
    }

    /// Holds the blocks of a finished prompt and listens for notices from now on.
    /// Returns the parameters for the decode engine.
    ///
    /// # Errors
    /// When the side channel's address is in use.
    pub(crate) fn hold(&mut self, finished: &Finished<'_>, now_ns: u64) -> Result<Value, LinkError> {
        if self.notices.is_none() {
            let address = format!("tcp://{}:{}", self.settings.side_channel_host, self.port);
            self.notices = Some(NoticeBoard::bind(&self.transport, &address)?);
        }
        let until_ns = now_ns.saturating_add(self.settings.lease_ns);
        self.held.insert(finished.id.to_owned(), Held { core: finished.core, until_ns });
        self.next_lease_end_ns = Some(self.next_lease_end_ns.map_or(until_ns, |next_ns| next_ns.min(until_ns)));
        Ok(self.params(finished))
    }

    /// The parameters of the NIXL connector of the frontend's version.
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
        let by_version = [
            ("transfer_mode", text("pull")),
            ("dcp_size", Value::from(1u64)),
            ("pp_size", Value::from(1u64)),
            ("remote_prefill_cached_tokens", Value::from(u64::from(finished.cached_tokens))),
            ("remote_registration_generation", Value::from(0u64)),
        ];
        let known = &finished.version.rules().kv_transfer_keys;
        pairs.extend(by_version.into_iter().filter(|(key, _)| known.iter().any(|other| other == key)));
        Value::Map(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
    }

    /// Notifies the prefill engine that its KV has been read.
    ///
    /// # Errors
    /// When the address cannot be used, or there are no more sockets.
    pub(crate) fn notify(&mut self, remote: &RemoteKv) -> Result<(), LinkError> {
        self.peers.send(&remote.address, &remote.request_id)
    }

    /// Finished prompts whose blocks are free again: fetched, or, if true, their
    /// lease expired.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn released(&mut self, now_ns: u64) -> Result<&[(RequestId, bool)], LinkError> {
        self.released.clear();
        if let Some(notices) = &self.notices {
            while let Some(id) = notices.try_receive()? {
                if let Some(held) = self.held.remove(&id) {
                    self.released.push((held.core, false));
                }
            }
        }
        if self.next_lease_end_ns.is_some_and(|end_ns| end_ns <= now_ns) {
            let mut expired: Vec<_> = self.held.extract_if(|_, held| held.until_ns <= now_ns).collect();
            expired.sort_by(|one, other| one.0.cmp(&other.0));
            self.released.extend(expired.into_iter().map(|(_, held)| (held.core, true)));
            self.next_lease_end_ns = self.held.values().map(|held| held.until_ns).min();
        }
        Ok(&self.released)
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
    pub(crate) version: VllmMinor,
}
