//! The publisher of KV events.

use std::collections::VecDeque;

use zmq::Socket;

use crate::handshake::KvEventsConfig;
use crate::kv_events::{KvEventBatch, decode_sequence};
use crate::link::error::LinkError;
use crate::link::transport::{Linger, Transport, bind, connect, send, try_receive};

/// The sequence number after the last batch of a replay: -1.
pub(in crate::link) const END_OF_REPLAY: [u8; 8] = [0xff; 8];

/// Publishes the events of an engine's cache, and repeats batches that a subscriber has missed.
pub struct KvEventPublisher {
    publisher: Socket,
    replay: Option<Socket>,
    config: KvEventsConfig,
    rank: u16,
    /// Sequence number of the next batch.
    sequence: u64,
    /// The latest batches, oldest first.
    buffer: VecDeque<(u64, Vec<u8>)>,
}

impl KvEventPublisher {
    /// Opens the sockets of `config`, whose addresses belong to rank 0.
    ///
    /// As in vLLM, the socket binds to an endpoint with `*` or `::`, or of `ipc` or `inproc`, and connects to any
    /// other endpoint.
    ///
    /// # Errors
    ///
    /// An address is in use or cannot be used.
    pub fn open(transport: &Transport, mut config: KvEventsConfig, rank: u16) -> Result<Self, LinkError> {
        let publisher = transport.socket(zmq::PUB, Linger::None)?;
        let limit = i32::try_from(config.hwm).unwrap_or(i32::MAX);
        publisher.set_sndhwm(limit).map_err(LinkError::socket("limit waiting events"))?;
        config.endpoint = of_rank(&config.endpoint, rank);
        let is_ours = config.endpoint.contains(['*']) || config.endpoint.contains("::");
        if is_ours || config.endpoint.starts_with("ipc://") || config.endpoint.starts_with("inproc://") {
            let bound = bind(&publisher, &config.endpoint)?;
            if config.endpoint.ends_with(":0") {
                config.endpoint = bound;
            }
        } else {
            connect(&publisher, &config.endpoint)?;
        }
        let mut replay = None;
        if let Some(endpoint) = &mut config.replay_endpoint {
            let socket = transport.socket(zmq::ROUTER, Linger::None)?;
            *endpoint = of_rank(endpoint, rank);
            let bound = bind(&socket, endpoint)?;
            if endpoint.ends_with(":0") {
                *endpoint = bound;
            }
            replay = Some(socket);
        }
        config.enable_kv_cache_events = true;
        config.publisher = "zmq".to_owned();
        Ok(Self { publisher, replay, config, rank, sequence: 0, buffer: VecDeque::new() })
    }

    /// The settings with the addresses of this rank, for the engine's ready response.
    #[must_use]
    pub fn config(&self) -> &KvEventsConfig {
        &self.config
    }

    /// Publishes a batch and returns its sequence number. Sets the rank of the batch if it is missing. Slow
    /// subscribers miss the batch.
    pub fn publish(&mut self, batch: &KvEventBatch) -> Result<u64, LinkError> {
        let sequence = self.keep(batch);
        if let Some((_, payload)) = self.buffer.back() {
            let frames = [self.config.topic.as_bytes(), &sequence.to_be_bytes(), payload];
            send(&self.publisher, frames).map_err(LinkError::socket("publish events"))?;
        }
        self.trim();
        Ok(sequence)
    }

    /// Takes a batch that subscribers must miss: it gets a sequence number and can be replayed, but is not sent.
    pub fn withhold(&mut self, batch: &KvEventBatch) -> u64 {
        let sequence = self.keep(batch);
        self.trim();
        sequence
    }

    fn keep(&mut self, batch: &KvEventBatch) -> u64 {
        let mut payload = Vec::new();
        if batch.data_parallel_rank.is_none() {
            KvEventBatch { data_parallel_rank: Some(self.rank.into()), ..batch.clone() }.encode(&mut payload);
        } else {
            batch.encode(&mut payload);
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.buffer.push_back((sequence, payload));
        sequence
    }

    fn trim(&mut self) {
        while self.buffer.len() as u64 > self.config.buffer_steps {
            self.buffer.pop_front();
        }
    }

    /// The socket on which subscribers ask for missed batches.
    pub(in crate::link) fn socket(&self) -> Option<&Socket> {
        self.replay.as_ref()
    }

    /// Answers requests for missed batches and returns the number of requests. Must be called between steps; vLLM
    /// does it ten times a second.
    pub fn serve_replays(&self) -> Result<usize, LinkError> {
        let Some(socket) = &self.replay else { return Ok(0) };
        let mut served = 0;
        while let Some(frames) = try_receive(socket)? {
            // The protocol has no answer to invalid requests.
            let [client, _, start] = &frames[..] else { continue };
            let Ok(start) = decode_sequence(start) else { continue };
            let topic = self.config.topic.as_bytes();
            for (sequence, payload) in self.buffer.iter().filter(|(sequence, _)| *sequence >= start) {
                let answer = [client, &[][..], topic, &sequence.to_be_bytes(), payload];
                send(socket, answer).map_err(LinkError::socket("replay events"))?;
            }
            let end = [client, &[][..], &[], &END_OF_REPLAY, &[]];
            send(socket, end).map_err(LinkError::socket("end a replay"))?;
            served += 1;
        }
        Ok(served)
    }
}

/// The endpoint of a rank. A port is increased by the rank, unless any free port may be used; other endpoints get a
/// suffix. vLLM 0.33 refuses `ipc` endpoints for ranks other than 0.
fn of_rank(endpoint: &str, rank: u16) -> String {
    if rank == 0 {
        return endpoint.to_owned();
    }
    if endpoint.starts_with("inproc://") || endpoint.starts_with("ipc://") {
        return format!("{endpoint}_dp{rank}");
    }
    if endpoint.starts_with("tcp://")
        && let Some((host, port)) = endpoint.rsplit_once(':')
        && let Some(port) = port.parse::<u16>().ok().filter(|port| *port != 0).and_then(|port| port.checked_add(rank))
    {
        return format!("{host}:{port}");
    }
    endpoint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::of_rank;

    #[test]
    fn each_rank_has_its_own_address() {
        assert_eq!(of_rank("tcp://*:5557", 0), "tcp://*:5557");
        assert_eq!(of_rank("tcp://*:5557", 2), "tcp://*:5559");
        assert_eq!(of_rank("tcp://*:0", 2), "tcp://*:0");
        assert_eq!(of_rank("inproc://cache", 2), "inproc://cache_dp2");
        assert_eq!(of_rank("ipc:///run/events", 1), "ipc:///run/events_dp1");
    }
}
