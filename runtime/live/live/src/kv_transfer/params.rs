//! The `kv_transfer_params` of requests, as in vLLM's NIXL connector.

use vcr_transfer::{Meeting, Peer, Room};
use vcr_wire::{Protocol, Value, VllmMinor};

use crate::kv_transfer::peers::AllowedPeers;
use crate::kv_transfer::settings::{MeetingSettings, PdRole, RoomKeys};
use crate::requests::RemoteKv;

/// The source or the destination of a request's KV.
#[derive(Clone, Debug)]
pub(crate) enum KvParams {
    /// A decode engine will fetch the KV. It waits in the room, if there is one.
    RemoteDecode(Option<Room>),
    /// A prefill engine computes the KV, and says in a room where it is.
    MeetPrefill(Meeting),
    /// A prefill engine holds the KV.
    RemotePrefill(RemoteKv),
    /// A prefill engine should hold the KV, but these keys are missing or invalid.
    Incomplete(Vec<&'static str>),
    /// A prefill engine holds the KV, but requests may not name its host.
    Refused(String),
    /// No other engine takes part.
    Local,
}

impl KvParams {
    pub(crate) fn of(params: &Value, allowed: &AllowedPeers, meetings: Option<&MeetingSettings>) -> Self {
        let is_set = |key: &str| params.get(key).and_then(Value::as_bool) == Some(true);
        let (is_decode, is_prefill) = (is_set("do_remote_prefill"), is_set("do_remote_decode"));
        if let Some(meetings) = meetings {
            let role = match (is_decode, is_prefill) {
                (true, _) => Some(PdRole::Decode),
                (false, true) => Some(PdRole::Prefill),
                (false, false) => meetings.role,
            };
            if let Some(kv) = role.and_then(|role| Self::by_room(params, role, meetings.room_keys, allowed)) {
                return kv;
            }
        }
        if is_decode {
            return Self::remote(params, allowed);
        }
        if is_prefill { Self::RemoteDecode(None) } else { Self::Local }
    }

    /// The transfer of a request with a room, for an engine with this role; `None` if the request names no room.
    fn by_room(params: &Value, role: PdRole, keys: RoomKeys, allowed: &AllowedPeers) -> Option<Self> {
        let get = |key: &str| params.get(key).filter(|value| **value != Value::Nil);
        let (room_key, room) = match keys {
            RoomKeys::Bootstrap => {
                let room = get("bootstrap_room")?;
                ("bootstrap_room", room.as_u64().map(Room::Number))
            }
            RoomKeys::TransferId => {
                let room = get("transfer_id")?.as_str().filter(|name| (1..=MAX_ROOM_NAME_BYTES).contains(&name.len()));
                ("transfer_id", room.map(|name| Room::Name(name.to_owned())))
            }
        };
        // The prefill engine has answered already, so there is nothing to wait for.
        if role == PdRole::Decode && get("remote_block_ids").is_some() {
            return None;
        }
        let Some(room) = room else { return Some(Self::Incomplete(vec![room_key])) };
        if role == PdRole::Prefill {
            return Some(Self::RemoteDecode(Some(room)));
        }
        let text = |key: &str| get(key).and_then(Value::as_str);
        let (host, port, engine_id, missing) = match keys {
            RoomKeys::Bootstrap => {
                let port = get("bootstrap_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
                (text("bootstrap_host"), port, None, ["bootstrap_host", "bootstrap_port"])
            }
            RoomKeys::TransferId => {
                let address = text("remote_bootstrap_addr").and_then(bootstrap_address);
                let (host, port) = address.unzip();
                let engine_id = text("remote_engine_id");
                let host = host.filter(|_| engine_id.is_some());
                (host, port, engine_id, ["remote_bootstrap_addr", "remote_engine_id"])
            }
        };
        let (Some(host), Some(port)) = (host, port.filter(|port| *port > 0)) else {
            return Some(Self::Incomplete(missing.to_vec()));
        };
        if !allowed.contains(host) {
            return Some(Self::Refused(host.to_owned()));
        }
        let engine_id = engine_id.map(str::to_owned);
        Some(Self::MeetPrefill(Meeting { host: host.to_owned(), port, room, engine_id }))
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
        Self::RemotePrefill(RemoteKv {
            peer: Peer {
                host: host.to_owned(),
                port,
                engine_id: engine_id.to_owned(),
                // 0 means that the peer moves no bytes, so it has no generation.
                generation: generation.filter(|generation| *generation != 0),
            },
            request_id: request_id.to_owned(),
            blocks: blocks.clone(),
            is_pushed: text("transfer_mode") == Some("push"),
        })
    }
}

/// Maximum length of a room's name.
const MAX_ROOM_NAME_BYTES: usize = 512;

/// Host and port of `http://HOST:PORT`.
fn bootstrap_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.strip_prefix("http://")?.trim_end_matches('/').rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// Blocks by KV-cache group: one list for each group, or a single list as in older versions.
fn block_ids(value: &Value) -> Option<Vec<Vec<u32>>> {
    let list = value.as_array()?;
    let of_group = |blocks: &[Value]| {
        blocks.iter().map(|block| block.as_u64().and_then(|block| u32::try_from(block).ok())).collect()
    };
    match list.first() {
        Some(first) if first.as_array().is_some() => list.iter().map(|group| of_group(group.as_array()?)).collect(),
        _ => Some(vec![of_group(list)?]),
    }
}

/// The inputs of a finished prompt's transfer parameters.
pub(crate) struct HeldPrompt<'a> {
    pub(crate) id: &'a str,
    pub(crate) engine_id: &'a str,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// Block numbers by KV-cache group.
    pub(crate) blocks: &'a [Vec<u32>],
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
        let list =
            |blocks: &Vec<u32>| Value::Array(blocks.iter().map(|block| Value::from(u64::from(*block))).collect());
        let blocks = self.blocks.iter().map(list).collect();
        let mut pairs = vec![
            ("do_remote_prefill", Value::Bool(true)),
            ("do_remote_decode", Value::Bool(false)),
            ("remote_block_ids", Value::Array(blocks)),
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
        // The key of a push is needed in every version.
        let is_needed = |key: &str| key == "transfer_mode" && self.is_pushed;
        pairs
            .extend(by_version.into_iter().filter(|(key, _)| known.iter().any(|other| other == key) || is_needed(key)));
        Value::Map(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
    }
}
