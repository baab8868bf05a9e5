//! The `kv_transfer_params` of requests, by vLLM's NIXL connector.

use vcr_transfer::Peer;
use vcr_wire::{Value, VllmMinor};

use crate::kv_transfer::peers::AllowedPeers;
use crate::requests::RemoteKv;

/// The place of a request's KV, by its `kv_transfer_params`.
#[derive(Clone, Debug)]
pub(crate) enum KvParams {
    /// A decode engine will fetch it.
    DecodeElsewhere,
    /// A prefill engine holds it.
    PrefillElsewhere(RemoteKv),
    /// A prefill engine should hold it, but these keys are missing or invalid.
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
        let get = |key: &str| params.get(key).filter(|value| **value != Value::Nil);
        let text = |key: &str| get(key).and_then(Value::as_str);
        let port = get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let blocks = get("remote_block_ids").and_then(block_ids);
        let (engine_id, request_id, host) = (text("remote_engine_id"), text("remote_request_id"), text("remote_host"));
        let (Some(engine_id), Some(request_id), Some(host), Some(port), Some(blocks)) =
            (engine_id, request_id, host, port, &blocks)
        else {
            let present = [
                ("remote_engine_id", engine_id.is_some()),
                ("remote_request_id", request_id.is_some()),
                ("remote_host", host.is_some()),
                ("remote_port", port.is_some()),
                ("remote_block_ids", blocks.is_some()),
            ];
            return Self::Incomplete(present.into_iter().filter(|(_, is)| !is).map(|(key, _)| key).collect());
        };
        if !allowed.contains(host) {
            return Self::Refused(host.to_owned());
        }
        let generation = get("remote_registration_generation").and_then(Value::as_u64);
        Self::PrefillElsewhere(RemoteKv {
            peer: Peer {
                host: host.to_owned(),
                port,
                engine_id: engine_id.to_owned(),
                // Engines that move nothing are always at their first.
                generation: generation.filter(|generation| *generation != 0),
            },
            request_id: request_id.to_owned(),
            blocks: blocks.clone(),
            is_pushed: text("transfer_mode") == Some("push"),
        })
    }
}

/// The blocks of the first group: one list for each group of layers, or a list alone as in older versions.
fn block_ids(value: &Value) -> Option<Vec<u32>> {
    let list = value.as_array()?;
    let blocks = match list.first() {
        Some(first) if first.as_array().is_some() => first.as_array()?,
        _ => list,
    };
    blocks.iter().map(|block| block.as_u64().and_then(|block| u32::try_from(block).ok())).collect()
}

/// What the parameters of a finished prompt say.
pub(crate) struct HeldPrompt<'a> {
    pub(crate) id: &'a str,
    pub(crate) engine_id: &'a str,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) blocks: &'a [u32],
    pub(crate) num_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) tensor_parallel_size: u32,
    pub(crate) generation: u64,
    pub(crate) is_pushed: bool,
}

impl HeldPrompt<'_> {
    /// The parameters for the decode engine, in the frontend's version.
    pub(crate) fn params(&self, version: VllmMinor) -> Value {
        let text = |text: &str| Value::Str(text.to_owned());
        let blocks = self.blocks.iter().map(|block| Value::from(u64::from(*block))).collect();
        let mut pairs = vec![
            ("do_remote_prefill", Value::Bool(true)),
            ("do_remote_decode", Value::Bool(false)),
            ("remote_block_ids", Value::Array(vec![Value::Array(blocks)])),
            ("remote_engine_id", text(self.engine_id)),
            ("remote_request_id", text(self.id)),
            ("remote_host", text(self.host)),
            ("remote_port", Value::from(u64::from(self.port))),
            ("tp_size", Value::from(u64::from(self.tensor_parallel_size))),
            ("remote_num_tokens", Value::from(u64::from(self.num_tokens))),
            ("remote_blocks_expiry_time", Value::Nil),
        ];
        let by_version = [
            ("transfer_mode", text(if self.is_pushed { "push" } else { "pull" })),
            ("dcp_size", Value::from(1u64)),
            ("pp_size", Value::from(1u64)),
            ("remote_prefill_cached_tokens", Value::from(u64::from(self.cached_tokens))),
            ("remote_registration_generation", Value::from(self.generation)),
        ];
        let known = &version.rules().kv_transfer_keys;
        // A push is not understood without its key, whatever the version.
        let is_needed = |key: &str| key == "transfer_mode" && self.is_pushed;
        pairs
            .extend(by_version.into_iter().filter(|(key, _)| known.iter().any(|other| other == key) || is_needed(key)));
        Value::Map(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
    }
}
