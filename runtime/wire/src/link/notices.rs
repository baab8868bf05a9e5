//! Short notices between engines.
//!
//! When a decode engine has read the KV blocks of a prompt, it notifies the
//! prefill engine that holds them. vLLM's NIXL connector sends such notices
//! over the network that moved the blocks; engines that move nothing send them
//! here.

use std::collections::HashMap;

use zmq::Socket;

use super::error::LinkError;
use super::transport::{Linger, Transport, bind, connect, send, try_receive};

/// A notice is a request's name; nothing longer is listened to.
const LONGEST_NOTICE_BYTES: usize = 4096;

/// The receiver of notices.
pub struct NoticeBoard {
    socket: Socket,
    address: String,
}

impl NoticeBoard {
    /// Listens at `address`, `tcp://host:port`.
    ///
    /// # Errors
    ///
    /// When the address is in use or cannot be used.
    pub fn bind(transport: &Transport, address: &str) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::PULL, Linger::None)?;
        let address = bind(&socket, address)?;
        Ok(Self { socket, address })
    }

    /// Its address, with the actual port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The next notice that has come in, if any.
    ///
    /// # Errors
    ///
    /// When the library fails.
    pub fn try_receive(&self) -> Result<Option<String>, LinkError> {
        while let Some(mut frames) = try_receive(&self.socket)? {
            let text = frames.pop().filter(|text| frames.is_empty() && text.len() <= LONGEST_NOTICE_BYTES);
            if let Some(text) = text.and_then(|text| String::from_utf8(text).ok()) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }
}

/// Sends notices to any board.
pub struct NoticeSender {
    transport: Transport,
    boards: HashMap<String, Socket>,
}

impl NoticeSender {
    /// Knows no board yet.
    #[must_use]
    pub fn new(transport: &Transport) -> Self {
        Self { transport: transport.clone(), boards: HashMap::new() }
    }

    /// Sends a notice to the board at `address`. Never blocks; it waits while
    /// nothing listens there.
    ///
    /// # Errors
    ///
    /// When the address cannot be used, or the library fails.
    pub fn send(&mut self, address: &str, notice: &str) -> Result<(), LinkError> {
        if !self.boards.contains_key(address) {
            let socket = self.transport.socket(zmq::PUSH, Linger::Output)?;
            connect(&socket, address)?;
            self.boards.insert(address.to_owned(), socket);
        }
        send(&self.boards[address], [notice]).map_err(LinkError::socket("send a notice"))
    }
}
