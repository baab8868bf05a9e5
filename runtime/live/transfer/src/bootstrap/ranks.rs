//! Registrations of SGLang's ranks, and the table of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bootstrap::wire::MAX_NAME_BYTES;

/// Maximum number of ranks of one kind, and of all ranks of a worker.
const MAX_RANKS: u32 = 65_536;
/// Maximum number of rooms whose ranks other processes have registered.
const MAX_ROOMS: usize = 65_536;

/// The registration of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    attn_tp_size: u32,
    attn_tp_rank: u32,
    attn_cp_size: u32,
    attn_cp_rank: u32,
    attn_dp_size: u32,
    attn_dp_rank: u32,
    pp_size: u32,
    pp_rank: u32,
    system_dp_size: u32,
    system_dp_rank: u32,
    pub(crate) rank_ip: String,
    rank_port: u16,
    #[serde(default)]
    page_size: Option<u32>,
    #[serde(default)]
    kv_cache_dtype: Option<String>,
    #[serde(default)]
    load_balance_method: Option<String>,
}

/// An engine of this process, in terms of its ranks.
#[derive(Clone, Debug)]
pub(crate) struct OwnRank {
    pub(crate) tp_rank: u32,
    pub(crate) tp_size: u32,
    pub(crate) dp_rank: u32,
    pub(crate) dp_size: u32,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) block_tokens: u32,
}

impl From<OwnRank> for Registration {
    fn from(own: OwnRank) -> Self {
        let OwnRank { tp_rank, tp_size, dp_rank, dp_size, host, port, block_tokens } = own;
        Self {
            attn_tp_size: tp_size,
            attn_tp_rank: tp_rank,
            attn_cp_size: 1,
            attn_cp_rank: 0,
            attn_dp_size: 1,
            attn_dp_rank: 0,
            pp_size: 1,
            pp_rank: 0,
            system_dp_size: dp_size,
            system_dp_rank: dp_rank,
            rank_ip: host,
            rank_port: port,
            page_size: Some(block_tokens),
            kv_cache_dtype: Some("auto".to_owned()),
            // A frontend has chosen the engine, independent of the room's number.
            load_balance_method: Some("round_robin".to_owned()),
        }
    }
}

/// SGLang's default: the room's number determines the rank.
const FOLLOWS_ROOM: &str = "follow_bootstrap_room";

impl Registration {
    /// Reads the registration of a rank.
    ///
    /// # Errors
    /// The body is no registration, or is invalid.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        let registration: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let places = [
            ("attn_tp", registration.attn_tp_rank, registration.attn_tp_size),
            ("attn_cp", registration.attn_cp_rank, registration.attn_cp_size),
            ("attn_dp", registration.attn_dp_rank, registration.attn_dp_size),
            ("pp", registration.pp_rank, registration.pp_size),
            ("system_dp", registration.system_dp_rank, registration.system_dp_size),
        ];
        for (name, rank, size) in places {
            if !(1..=MAX_RANKS).contains(&size) {
                return Err(format!("{name}_size is {size}, expected 1 to {MAX_RANKS}"));
            }
            if rank >= size {
                return Err(format!("{name}_rank is {rank}, expected less than {name}_size, which is {size}"));
            }
        }
        if registration.rank_ip.len() > MAX_NAME_BYTES {
            return Err(format!("rank_ip has more than {MAX_NAME_BYTES} bytes"));
        }
        Ok(registration)
    }

    fn dp(&self) -> (u32, u32) {
        if self.system_dp_size == 1 {
            (self.attn_dp_rank, self.attn_dp_size)
        } else {
            (self.system_dp_rank, self.system_dp_size)
        }
    }
}

/// What a decode engine must know of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    attn_tp_size: u32,
    attn_cp_size: u32,
    pub(crate) dp_size: u32,
    pp_size: u32,
    pub(crate) page_size: Option<u32>,
    kv_cache_dtype: Option<String>,
    pub(crate) follow_bootstrap_room: bool,
}

impl WorkerInfo {
    /// Reads the registration of a worker.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        let info: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match info.dp_size {
            1..=MAX_RANKS => Ok(info),
            other => Err(format!("dp_size is {other}, expected 1 to {MAX_RANKS}")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankAddress {
    pub(crate) rank_ip: String,
    pub(crate) rank_port: u16,
}

impl RankAddress {
    /// Decodes what `/route` has returned for a rank.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| error.to_string())
    }
}

/// The indices of a rank: data, context, tensor and pipeline parallel.
pub(crate) type Place4 = [u32; 4];

#[derive(Debug, Default)]
pub(crate) struct Table {
    info: Option<WorkerInfo>,
    ranks: BTreeMap<Place4, RankAddress>,
    /// The rank of each room that other processes have registered, and when they did.
    rooms: BTreeMap<u64, (u32, Instant)>,
}

impl Table {
    pub(crate) fn rank(&self, place: Place4) -> Option<&RankAddress> {
        self.ranks.get(&place)
    }

    /// The data-parallel rank that another process has registered for a room.
    pub(crate) fn rank_of_room(&self, room: u64) -> Option<u32> {
        self.rooms.get(&room).map(|(rank, _)| *rank)
    }

    /// Adds a rank. A rank that registers again has been restarted.
    pub(crate) fn register(&mut self, registration: Registration) -> Result<(), String> {
        let (dp_rank, dp_size) = registration.dp();
        let info = WorkerInfo {
            attn_tp_size: registration.attn_tp_size,
            attn_cp_size: registration.attn_cp_size,
            dp_size,
            pp_size: registration.pp_size,
            page_size: registration.page_size,
            kv_cache_dtype: registration.kv_cache_dtype,
            follow_bootstrap_room: registration.load_balance_method.is_none_or(|method| method == FOLLOWS_ROOM),
        };
        let all = [info.attn_tp_size, info.attn_cp_size, info.dp_size, info.pp_size];
        if all.iter().map(|size| u64::from(*size)).product::<u64>() > u64::from(MAX_RANKS) {
            return Err(format!("a worker has more than {MAX_RANKS} ranks"));
        }
        if let Some(known) = self.info.as_ref().filter(|known| **known != info) {
            return Err(format!("this rank is one of {info:?}, the ranks before it of {known:?}"));
        }
        self.info = Some(info);
        let place = [dp_rank, registration.attn_cp_rank, registration.attn_tp_rank, registration.pp_rank];
        self.ranks.insert(place, RankAddress { rank_ip: registration.rank_ip, rank_port: registration.rank_port });
        Ok(())
    }

    /// The description of the worker, once all of its ranks have registered.
    pub(crate) fn ready(&self) -> Result<&WorkerInfo, String> {
        let expected = self.info.as_ref().map(|info| {
            [info.attn_tp_size, info.attn_cp_size, info.dp_size, info.pp_size]
                .iter()
                .map(|size| u64::from(*size))
                .product()
        });
        match (&self.info, expected) {
            (Some(info), Some(expected)) if self.ranks.len() as u64 >= expected => Ok(info),
            (_, expected) => Err(format!("{} of {} ranks have registered", self.ranks.len(), expected.unwrap_or(1u64))),
        }
    }

    /// Records that another process's data-parallel rank has got the request of a room.
    pub(crate) fn register_room(&mut self, room: u64, dp_rank: u32, lifetime: Duration) -> Result<(), String> {
        if self.rooms.len() >= MAX_ROOMS {
            self.rooms.retain(|_, (_, since)| since.elapsed() < lifetime);
        }
        if self.rooms.len() >= MAX_ROOMS {
            return Err(format!("{MAX_ROOMS} rooms are registered"));
        }
        self.rooms.insert(room, (dp_rank, Instant::now()));
        Ok(())
    }
}

/// Decodes the parameters of `/route`.
pub fn decode_query(query: &str) -> Result<[i64; 4], String> {
    let mut numbers = [None; 4];
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let Some(place) = QUERY_KEYS.iter().position(|known| *known == key) {
            let number = value.parse().map_err(|_| format!("{key} is `{value}`, expected a number"))?;
            numbers[place] = Some(number);
        }
    }
    let mut found = [0; 4];
    for ((found, number), key) in found.iter_mut().zip(numbers).zip(QUERY_KEYS) {
        *found = number.ok_or_else(|| format!("{key} is missing"))?;
    }
    Ok(found)
}

/// The parameters of `/route`, in the order of [`Place4`].
pub(crate) const QUERY_KEYS: [&str; 4] = ["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"];

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(tp: (u32, u32), dp: (u32, u32)) -> serde_json::Value {
        serde_json::json!({
            "attn_tp_size": tp.1, "attn_tp_rank": tp.0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1,
            "attn_dp_rank": 0, "pp_size": 1, "pp_rank": 0, "system_dp_size": dp.1, "system_dp_rank": dp.0,
            "rank_ip": "10.0.0.1", "rank_port": 7000 + tp.0, "page_size": 64, "kv_cache_dtype": "auto",
            "prefill_http_port": 30000, "anything": {},
        })
    }

    fn decode(value: &serde_json::Value) -> Result<Registration, String> {
        Registration::decode(value.to_string().as_bytes())
    }

    #[test]
    fn a_worker_is_there_when_all_its_ranks_are() {
        let mut table = Table::default();
        assert_eq!(table.ready(), Err("0 of 1 ranks have registered".to_owned()));
        for (tp, dp) in [(0, 0), (1, 0), (0, 1)] {
            table.register(decode(&registration((tp, 2), (dp, 2))).expect("it makes sense")).expect("it fits");
            assert!(table.ready().is_err());
        }
        table.register(decode(&registration((1, 2), (1, 2))).expect("it makes sense")).expect("it fits");
        let info = table.ready().expect("all are there");
        assert_eq!((info.attn_tp_size, info.dp_size, info.page_size), (2, 2, Some(64)));
        assert!(info.follow_bootstrap_room, "SGLang's default");
        assert_eq!(table.ranks[&[1, 0, 1, 0]].rank_port, 7001);
    }

    #[test]
    fn ranks_that_lie_about_sizes_are_refused() {
        let bad = |key: &str, value: serde_json::Value| {
            let mut registration = registration((0, 2), (0, 1));
            registration[key] = value;
            decode(&registration).expect_err("it is invalid")
        };
        assert_eq!(bad("attn_tp_size", 0.into()), "attn_tp_size is 0, expected 1 to 65536");
        assert_eq!(bad("attn_tp_rank", 2.into()), "attn_tp_rank is 2, expected less than attn_tp_size, which is 2");
        assert!(bad("rank_port", 70_000.into()).contains("u16"));
        assert!(bad("rank_ip", "x".repeat(513).into()).contains("more than 512 bytes"));
        assert!(Registration::decode(b"{\"attn_tp_size\": 1").is_err());
        let mut table = Table::default();
        table.register(decode(&registration((0, 2), (0, 1))).expect("it makes sense")).expect("it fits");
        let error =
            table.register(decode(&registration((0, 4), (0, 1))).expect("it makes sense")).expect_err("another");
        assert!(error.contains("attn_tp_size: 4") && error.contains("attn_tp_size: 2"), "{error}");
        let huge = decode(&registration((0, 65_536), (0, 2))).expect("each size is allowed");
        assert_eq!(Table::default().register(huge).expect_err("too many"), "a worker has more than 65536 ranks");
    }

    #[test]
    fn queries_have_four_numbers() {
        let query = "prefill_dp_rank=1&prefill_cp_rank=0&target_tp_rank=-1&target_pp_rank=3&more=x";
        assert_eq!(decode_query(query), Ok([1, 0, -1, 3]));
        assert_eq!(decode_query("prefill_dp_rank=1"), Err("prefill_cp_rank is missing".to_owned()));
        assert_eq!(decode_query("prefill_dp_rank=x"), Err("prefill_dp_rank is `x`, expected a number".to_owned()));
    }

    #[test]
    fn rooms_of_others_are_bounded() {
        let mut table = Table::default();
        for room in 0..MAX_ROOMS as u64 {
            table.register_room(room, 0, Duration::from_secs(60)).expect("there is room");
        }
        assert!(table.register_room(u64::MAX, 0, Duration::from_secs(60)).is_err());
        table.register_room(u64::MAX, 1, Duration::ZERO).expect("old ones make room");
        assert_eq!(table.rooms.len(), 1);
    }
}
