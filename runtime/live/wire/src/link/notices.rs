//! The side channel of an engine: short notices, and the metadata of its KV cache.
//!
//! When a decode engine has read the KV blocks of a prompt, it notifies the prefill engine that holds them. vLLM's
//! NIXL connector sends such notices over the network that moved the blocks. Engines that move no bytes send them over
//! this channel. vLLM's connector also uses this channel to request the metadata that NIXL needs to read the blocks.

use std::collections::{BTreeMap, HashMap};

use zmq::Socket;

use super::error::LinkError;
use super::monotonic_ns;
use super::transport::{Linger, Transport, bind, connect, send, try_receive};
use crate::nixl::{NixlHandshake, NixlQuery, encode_clock};

/// Maximum length of a notice, which is the ID of a request; longer ones are dropped.
const LONGEST_NOTICE_BYTES: usize = 4096;

/// The receiver of notices.
pub struct NoticeBoard {
    socket: Socket,
    address: String,
    /// The encoded answers to metadata queries.
    metadata: BTreeMap<NixlQuery, Vec<u8>>,
}

impl NoticeBoard {
    /// Listens at `address`, `tcp://host:port`.
    ///
    /// # Errors
    ///
    /// The address is in use or cannot be used.
    pub fn bind(transport: &Transport, address: &str) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::ROUTER, Linger::None)?;
        let address = bind(&socket, address)?;
        Ok(Self { socket, address, metadata: BTreeMap::new() })
    }

    /// Answers metadata queries for a worker with `answer` from now on. As in vLLM, other queries get no answer.
    pub fn set_metadata(&mut self, query: NixlQuery, answer: &NixlHandshake) {
        let mut encoded = Vec::new();
        answer.encode(&mut encoded);
        self.metadata.insert(query, encoded);
    }

    /// The address of the board, with the actual port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Takes the next notice that has arrived, if any. Answers metadata queries that arrived before it.
    pub fn try_receive(&self) -> Result<Option<String>, LinkError> {
        while let Some(frames) = try_receive(&self.socket)? {
            match <[Vec<u8>; 2]>::try_from(frames) {
                Ok([_, text]) if text.len() <= LONGEST_NOTICE_BYTES => {
                    if let Ok(text) = String::from_utf8(text) {
                        return Ok(Some(text));
                    }
                }
                Ok(_) => {}
                Err(frames) => self.answer(frames),
            }
        }
        Ok(None)
    }

    /// Answers a metadata query, if the frames contain one.
    fn answer(&self, frames: Vec<Vec<u8>>) {
        let Ok([peer, delimiter, question]) = <[Vec<u8>; 3]>::try_from(frames) else { return };
        let answer = NixlQuery::decode(&question).ok().and_then(|query| self.metadata.get(&query));
        if let Some(answer) = answer.filter(|_| delimiter.is_empty()) {
            let clock = encode_clock(monotonic_ns());
            // A peer that has disconnected needs no answer.
            _ = send(&self.socket, [&peer, &delimiter, answer, &clock]);
        }
    }
}

/// Sends notices to any board.
pub struct NoticeSender {
    transport: Transport,
    boards: HashMap<String, Socket>,
}

impl NoticeSender {
    /// A sender without connections.
    #[must_use]
    pub fn new(transport: &Transport) -> Self {
        Self { transport: transport.clone(), boards: HashMap::new() }
    }

    /// Sends a notice to the board at `address`, without blocking. The notice waits while nothing listens there.
    ///
    /// # Errors
    ///
    /// The address cannot be used, or ZeroMQ fails.
    pub fn send(&mut self, address: &str, notice: &str) -> Result<(), LinkError> {
        if !self.boards.contains_key(address) {
            let socket = self.transport.socket(zmq::DEALER, Linger::Output)?;
            connect(&socket, address)?;
            self.boards.insert(address.to_owned(), socket);
        }
        send(&self.boards[address], [notice]).map_err(LinkError::socket("send a notice"))
    }
}

/// A query for the metadata of a worker's KV cache that may not be answered yet.
pub struct MetadataRequest {
    socket: Socket,
}

impl MetadataRequest {
    /// Sends a query to the side channel at `address`, without blocking. The query waits while nothing listens there.
    ///
    /// # Errors
    ///
    /// The address cannot be used, or ZeroMQ fails.
    pub fn send(transport: &Transport, address: &str, query: NixlQuery) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::DEALER, Linger::None)?;
        connect(&socket, address)?;
        let mut question = Vec::new();
        query.encode(&mut question);
        send(&socket, [&[][..], &question]).map_err(LinkError::socket("ask for metadata"))?;
        Ok(Self { socket })
    }

    /// Takes the first frame of the answer, if it has arrived: an encoded [`NixlHandshake`].
    pub fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        while let Some(frames) = try_receive(&self.socket)? {
            if let Ok([delimiter, answer, _]) = <[Vec<u8>; 3]>::try_from(frames)
                && delimiter.is_empty()
            {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }
}
