//! Registrations of workers of vLLM's Mooncake connector, and the table of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bootstrap::peer::Place;
use crate::bootstrap::wire::MAX_NAME_BYTES;

/// Maximum number of workers.
const MAX_WORKERS: usize = 65_536;
/// The prefix of workers' addresses.
pub(crate) const SCHEME: &str = "tcp://";

/// The registration of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    pub(crate) engine_id: String,
    pub(crate) dp_rank: u32,
    pub(crate) tp_rank: u32,
    pub(crate) pp_rank: u32,
    pub(crate) addr: String,
}

impl Registration {
    /// Reads the registration of a worker.
    ///
    /// # Errors
    /// The body is no registration, or is invalid.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        let registration: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let length = registration.engine_id.len();
        if !(1..=MAX_NAME_BYTES).contains(&length) {
            return Err(format!("engine_id has {length} bytes, expected 1 to {MAX_NAME_BYTES}"));
        }
        place_of(&registration.addr)?;
        Ok(registration)
    }
}

/// Parses the address of a worker.
pub(crate) fn place_of(address: &str) -> Result<Place, String> {
    let parts = address.strip_prefix(SCHEME).and_then(|rest| rest.rsplit_once(':'));
    let place = parts.and_then(|(host, port)| Some(Place { host: host.to_owned(), port: port.parse().ok()? }));
    place.filter(|place| (1..=MAX_NAME_BYTES).contains(&place.host.len())).ok_or_else(|| {
        let start: String = address.chars().take(100).collect();
        format!("addr is `{start}`, expected tcp://HOST:PORT")
    })
}

/// An engine and its workers' addresses, by tensor-parallel and then by pipeline-parallel rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineEntry {
    pub(crate) engine_id: String,
    pub(crate) worker_addr: BTreeMap<u32, BTreeMap<u32, String>>,
}

/// Decodes the engines of a bootstrap server, by data-parallel rank.
pub fn decode_engines(body: &[u8]) -> Result<BTreeMap<u32, EngineEntry>, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) engines: BTreeMap<u32, EngineEntry>,
    num_workers: usize,
}

impl Table {
    pub(crate) fn register(&mut self, registration: Registration) -> Result<(), String> {
        let Registration { engine_id, dp_rank, tp_rank, pp_rank, addr } = registration;
        if self.num_workers >= MAX_WORKERS {
            return Err(format!("{MAX_WORKERS} workers have registered"));
        }
        let new = || EngineEntry { engine_id: engine_id.clone(), worker_addr: BTreeMap::new() };
        let engine = self.engines.entry(dp_rank).or_insert_with(new);
        if engine.engine_id != engine_id {
            return Err(format!("dp_rank {dp_rank} is engine `{}`, not `{engine_id}`", engine.engine_id));
        }
        let of_tp_rank = engine.worker_addr.entry(tp_rank).or_default();
        if let Some(before) = of_tp_rank.get(&pp_rank) {
            return Err(format!(
                "dp_rank {dp_rank}, tp_rank {tp_rank}, pp_rank {pp_rank} is at {before}, not at {addr}"
            ));
        }
        of_tp_rank.insert(pp_rank, addr);
        self.num_workers += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(engine: &str, tp_rank: u32, addr: &str) -> Result<Registration, String> {
        let body = serde_json::json!({
            "engine_id": engine, "dp_rank": 0, "tp_rank": tp_rank, "pp_rank": 0, "addr": addr, "tp_size": 2,
        });
        Registration::decode(body.to_string().as_bytes())
    }

    #[test]
    fn engines_are_answered_as_they_registered() {
        let mut table = Table::default();
        table.register(registration("e", 0, "tcp://h:1").expect("it makes sense")).expect("it is the first");
        table.register(registration("e", 1, "tcp://h:2").expect("it makes sense")).expect("it is the second");
        let json = serde_json::to_value(&table.engines).expect("it is JSON");
        assert_eq!(
            json,
            serde_json::json!({"0": {"engine_id": "e", "worker_addr": {"0": {"0": "tcp://h:1"}, "1": {"0": "tcp://h:2"}}}})
        );
        assert_eq!(decode_engines(json.to_string().as_bytes()), Ok(table.engines.clone()));
        let twice = table.register(registration("e", 1, "tcp://h:3").expect("it makes sense"));
        assert_eq!(twice, Err("dp_rank 0, tp_rank 1, pp_rank 0 is at tcp://h:2, not at tcp://h:3".to_owned()));
        let other = table.register(registration("x", 2, "tcp://h:3").expect("it makes sense"));
        assert_eq!(other, Err("dp_rank 0 is engine `e`, not `x`".to_owned()));
    }

    #[test]
    fn registrations_that_make_no_sense_are_refused() {
        for addr in ["h:1", "tcp://h", "tcp://:1", "tcp://h:70000", "http://h:1", ""] {
            let error = registration("e", 0, addr).expect_err("it is not an address");
            assert_eq!(error, format!("addr is `{addr}`, expected tcp://HOST:PORT"));
        }
        assert_eq!(registration("", 0, "tcp://h:1"), Err("engine_id has 0 bytes, expected 1 to 512".to_owned()));
        assert!(Registration::decode(b"{\"engine_id\": 3}").is_err());
        assert!(decode_engines(b"{\"x\": {}}").is_err());
        assert!(decode_engines(b"[]").is_err());
    }
}
