//! The messages of the TCP plane, and their encoding.
//!
//! Each side opens a connection with [`PREFACE_BYTES`] bytes: a fixed text and the version. Frames follow. A frame
//! is a header of [`HEADER_BYTES`] bytes and a body. The header has the message's kind, the length of the body, and
//! the body's CRC-32. All numbers are little-endian. The bodies of [`Message::Data`] and [`Message::Write`] are
//! followed by the announced pages and a [`Trailer`].

mod decode;
mod encode;

use crate::arena::Span;
use crate::error::ErrorKind;
use crate::geometry::Geometry;

/// The version of this protocol.
pub const VERSION: u16 = 1;
/// The text that begins a connection.
pub const MAGIC: [u8; 8] = *b"vcr-kv\r\n";
/// The first bytes of TLS: a handshake record, version 3.
const TLS_RECORD: [u8; 2] = [22, 3];
/// Length of the bytes that open a connection.
pub const PREFACE_BYTES: usize = 10;
/// Length of a frame's header.
pub const HEADER_BYTES: usize = 12;
/// Length of a trailer.
pub const TRAILER_BYTES: usize = 8;
/// Maximum length of a body.
pub const MAX_BODY_BYTES: u32 = 256 << 10;
/// Maximum number of parts of pages in one batch.
pub const MAX_SPANS: usize = 8192;
/// Maximum number of page bytes in one batch of more than one part.
pub const MAX_BATCH_BYTES: u64 = 64 << 20;
/// Maximum length of the ID of an engine or request.
pub const MAX_NAME_BYTES: usize = 4096;
/// Maximum length of a notice.
pub const MAX_NOTICE_BYTES: usize = 128 << 10;

/// The reason why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the peer does not speak the KV protocol of vcr (it sent {0:02x?}); is it --kv-transfer tcp there?")]
    Magic([u8; 8]),
    #[error("the peer speaks TLS, but this engine has no --kv-transfer-tls-cert")]
    Tls,
    #[error("the peer has version {0} of the KV protocol, expected version {VERSION}")]
    Version(u16),
    #[error("unknown message kind {0}")]
    Kind(u8),
    #[error("{what} of {value} exceeds the limit of {limit}")]
    Limit {
        /// Name of the field that is too long.
        what: &'static str,
        /// The length.
        value: u64,
        limit: u64,
    },
    #[error("malformed {0} message")]
    Malformed(&'static str),
    #[error("the CRC of a message is wrong")]
    Crc,
}

/// The description that one side of a connection sends of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// ID of the engine.
    pub engine_id: String,
    pub generation: u64,
    pub geometry: Geometry,
    /// Hash of the layout that both sides must agree on; see [`Geometry::layout_hash`].
    pub layout_hash: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The side that connects identifies itself.
    Hello(PeerInfo),
    /// The other side identifies itself.
    Welcome(PeerInfo),
    /// The other side refuses the connection.
    Refused {
        kind: ErrorKind,
        /// Text of the error.
        message: String,
    },
    /// Requests parts of pages of a held prompt.
    Read {
        /// The reader's number of the batch.
        batch: u64,
        /// ID of the prompt's request.
        request: String,
        /// The parts, in the order in which they are to be sent.
        spans: Vec<Span>,
    },
    /// The answer to a read, followed by the bytes of the parts.
    Data {
        /// Number of the batch.
        batch: u64,
        /// Number of bytes that follow.
        bytes: u64,
    },
    /// Writes parts of pages for an expected transfer; their bytes follow.
    Write {
        /// The writer's number of the batch.
        batch: u64,
        /// ID of the expected transfer.
        request: String,
        /// The parts, in the order of the bytes.
        spans: Vec<Span>,
        /// Number of bytes that follow.
        bytes: u64,
    },
    /// A batch was written and is right.
    Written {
        /// Number of the batch.
        batch: u64,
    },
    /// A batch cannot be read or written.
    Failed {
        /// Number of the batch.
        batch: u64,
        kind: ErrorKind,
        /// Text of the error.
        message: String,
    },
    /// A notice for the engine's leases.
    Notice(Vec<u8>),
    /// Asks whether the other side is alive.
    Ping,
    /// Answers [`Message::Ping`].
    Pong,
}

/// The bytes that open a connection.
#[must_use]
pub fn preface() -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks the bytes that open a connection.
///
/// # Errors
/// The bytes are not those of this protocol and version.
pub fn check_preface(bytes: &[u8; PREFACE_BYTES]) -> Result<(), DecodeError> {
    let mut magic = [0; 8];
    magic.copy_from_slice(&bytes[..8]);
    if magic[..2] == TLS_RECORD {
        return Err(DecodeError::Tls);
    }
    if magic != MAGIC {
        return Err(DecodeError::Magic(magic));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version == VERSION { Ok(()) } else { Err(DecodeError::Version(version)) }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u8,
    body_bytes: u32,
    crc: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// The body is too long, or the kind is unknown.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DecodeError> {
        let [kind, ..] = *bytes;
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Self { kind, body_bytes: number(4), crc: number(8) };
        if !(1..=11).contains(&kind) {
            return Err(DecodeError::Kind(kind));
        }
        limit("a message", header.body_bytes.into(), MAX_BODY_BYTES.into())?;
        Ok(header)
    }

    /// Length of the body.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }
}

/// The end of a sequence of pages. It has no checksum, because the receiver compares every byte with the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The reason why the pages are invalid, if they are: their blocks were freed in the meantime.
    pub failure: Option<ErrorKind>,
}

impl Trailer {
    #[must_use]
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[0] = self.failure.map_or(0, |kind| kind.code() + 1);
        bytes
    }

    /// Reads a trailer.
    pub fn decode(bytes: &[u8; TRAILER_BYTES]) -> Result<Self, DecodeError> {
        let failure = match bytes[0] {
            0 => None,
            code => Some(ErrorKind::from_code(code - 1).ok_or(DecodeError::Malformed("trailer"))?),
        };
        Ok(Self { failure })
    }
}

fn limit(what: &'static str, value: u64, limit: u64) -> Result<(), DecodeError> {
    if value <= limit { Ok(()) } else { Err(DecodeError::Limit { what, value, limit }) }
}

/// Decodes all messages in `bytes`, including the opening, for tests with hostile bytes.
///
/// # Errors
/// The first error in `bytes`.
pub fn decode_all(bytes: &[u8]) -> Result<Vec<Message>, DecodeError> {
    let (opening, mut rest) = bytes.split_first_chunk::<PREFACE_BYTES>().ok_or(DecodeError::Malformed("opening"))?;
    check_preface(opening)?;
    let mut messages = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(header)?;
        let (body, after) = after.split_at_checked(header.body_bytes()).ok_or(DecodeError::Malformed("frame"))?;
        messages.push(Message::decode(&header, body)?);
        rest = after;
    }
    Ok(messages)
}

#[cfg(test)]
mod tests;
