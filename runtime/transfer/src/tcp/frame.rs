//! The messages of the TCP plane, and their bytes.
//!
//! Both sides open a connection with [`PREFACE_BYTES`] bytes: a fixed text, and the version. Frames follow: a header of
//! [`HEADER_BYTES`] bytes with the message's kind, the length of its body and the body's CRC-32, and the body. All numbers
//! are little-endian. After the bodies of [`Message::Data`] and [`Message::Write`] come the pages that they
//! announce, and a [`Trailer`].

use crate::arena::Span;
use crate::error::ErrorKind;
use crate::geometry::{Geometry, GeometryInput, HeadOrder, Regions};

/// The version of this protocol.
pub const VERSION: u16 = 1;
/// The text that opens a connection.
pub const MAGIC: [u8; 8] = *b"vcr-kv\r\n";
/// Length of the opening.
pub const PREFACE_BYTES: usize = 10;
/// Length of a frame's header.
pub const HEADER_BYTES: usize = 12;
/// Length of a trailer.
pub const TRAILER_BYTES: usize = 8;
/// Longest body.
pub const MAX_BODY_BYTES: u32 = 256 << 10;
/// Most parts of pages in one batch.
pub const MAX_SPANS: usize = 8192;
/// Most bytes of pages in one batch of more than one part.
pub const MAX_BATCH_BYTES: u64 = 64 << 20;
/// Longest name of an engine or request.
pub const MAX_NAME_BYTES: usize = 4096;
/// Longest notice.
pub const MAX_NOTICE_BYTES: usize = 128 << 10;

const SPAN_BYTES: usize = 16;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The opening is that of something else.
    #[error("the peer does not speak the KV protocol of vcr (it sent {0:02x?}); is it --kv-transfer tcp there?")]
    Magic([u8; 8]),
    /// The opening is of another version.
    #[error("the peer has version {0} of the KV protocol, expected version {VERSION}")]
    Version(u16),
    /// There is no such message.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// A length beyond its limit.
    #[error("{what} of {value} exceeds the limit of {limit}")]
    Limit {
        /// What it is the length of.
        what: &'static str,
        /// The length.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The body ends too early or too late, or is not as it must be.
    #[error("malformed {0} message")]
    Malformed(&'static str),
    /// The body is not what was sent.
    #[error("the CRC of a message is wrong")]
    Crc,
}

/// One side of a connection, as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Name of the engine.
    pub engine_id: String,
    /// Its start.
    pub generation: u64,
    /// Its sizes.
    pub geometry: Geometry,
    /// What both must agree on; see [`Geometry::layout_hash`].
    pub layout_hash: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The side that connects presents itself.
    Hello(Introduction),
    /// The other side presents itself.
    Welcome(Introduction),
    /// The other side refuses the connection.
    Refused {
        /// The kind.
        kind: ErrorKind,
        /// The reason.
        message: String,
    },
    /// Asks for parts of pages of a held prompt.
    Read {
        /// The reader's number of the batch.
        batch: u64,
        /// The prompt.
        request: String,
        /// The parts, in the order in which they are to be sent.
        spans: Vec<Span>,
    },
    /// The answer; the bytes follow.
    Data {
        /// The number of the batch.
        batch: u64,
        /// Bytes that follow.
        bytes: u64,
    },
    /// Parts of pages for an expected transfer; the bytes follow.
    Write {
        /// The writer's number of the batch.
        batch: u64,
        /// The expected transfer's name.
        request: String,
        /// Where the bytes belong, in their order.
        spans: Vec<Span>,
        /// Bytes that follow.
        bytes: u64,
    },
    /// A batch was written, and is right.
    Written {
        /// The number of the batch.
        batch: u64,
    },
    /// A batch cannot be read or written.
    Failed {
        /// The number of the batch.
        batch: u64,
        /// The kind.
        kind: ErrorKind,
        /// The reason.
        message: String,
    },
    /// A notice for the engine.
    Notice(Vec<u8>),
    /// Asks whether the other side lives.
    Ping,
    /// It does.
    Pong,
}

/// The opening of a connection.
#[must_use]
pub fn preface() -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks the opening of a connection.
///
/// # Errors
/// When it is not that of this protocol and version.
pub fn check_preface(bytes: &[u8; PREFACE_BYTES]) -> Result<(), DecodeError> {
    let mut magic = [0; 8];
    magic.copy_from_slice(&bytes[..8]);
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
    /// When the body is too long, or of no known kind.
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

/// The end of a sequence of pages. It has no checksum: the receiver compares every byte with the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Why they mean nothing, if so: the blocks were freed meanwhile.
    pub failure: Option<ErrorKind>,
}

impl Trailer {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[0] = self.failure.map_or(0, |kind| kind.code() + 1);
        bytes
    }

    /// Reads a trailer.
    ///
    /// # Errors
    /// When it names no known failure.
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

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Welcome(_) => 2,
            Self::Refused { .. } => 3,
            Self::Read { .. } => 4,
            Self::Data { .. } => 5,
            Self::Write { .. } => 6,
            Self::Written { .. } => 7,
            Self::Failed { .. } => 8,
            Self::Notice(_) => 9,
            Self::Ping => 10,
            Self::Pong => 11,
        }
    }

    /// The frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        match self {
            Self::Hello(introduction) | Self::Welcome(introduction) => put_introduction(&mut out, introduction),
            Self::Refused { kind, message } => {
                out.push(kind.code());
                put_bytes(&mut out, clipped(message));
            }
            Self::Read { batch, request, spans } => {
                out.extend(batch.to_le_bytes());
                put_bytes(&mut out, request.as_bytes());
                put_spans(&mut out, spans);
            }
            Self::Data { batch, bytes } => {
                out.extend(batch.to_le_bytes());
                out.extend(bytes.to_le_bytes());
            }
            Self::Write { batch, request, spans, bytes } => {
                out.extend(batch.to_le_bytes());
                put_bytes(&mut out, request.as_bytes());
                put_spans(&mut out, spans);
                out.extend(bytes.to_le_bytes());
            }
            Self::Written { batch } => out.extend(batch.to_le_bytes()),
            Self::Failed { batch, kind, message } => {
                out.extend(batch.to_le_bytes());
                out.push(kind.code());
                put_bytes(&mut out, clipped(message));
            }
            Self::Notice(text) => put_bytes(&mut out, text),
            Self::Ping | Self::Pong => {}
        }
        let body_bytes = (out.len() - HEADER_BYTES) as u32;
        let crc = crc32fast::hash(&out[HEADER_BYTES..]);
        out[0] = self.kind();
        out[4..8].copy_from_slice(&body_bytes.to_le_bytes());
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// When it is damaged, malformed, or beyond a limit.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Self, DecodeError> {
        if crc32fast::hash(body) != header.crc {
            return Err(DecodeError::Crc);
        }
        let name = match header.kind {
            1 => "Hello",
            2 => "Welcome",
            3 => "Refused",
            4 => "Read",
            5 => "Data",
            6 => "Write",
            7 => "Written",
            8 => "Failed",
            9 => "Notice",
            10 => "Ping",
            11 => "Pong",
            kind => return Err(DecodeError::Kind(kind)),
        };
        let mut body = Body { rest: body, name };
        let message = match header.kind {
            1 => Self::Hello(body.introduction()?),
            2 => Self::Welcome(body.introduction()?),
            3 => Self::Refused { kind: body.error_kind()?, message: body.name()? },
            4 => Self::Read { batch: body.u64()?, request: body.name()?, spans: body.spans()? },
            5 => Self::Data { batch: body.u64()?, bytes: body.u64()? },
            6 => Self::Write { batch: body.u64()?, request: body.name()?, spans: body.spans()?, bytes: body.u64()? },
            7 => Self::Written { batch: body.u64()? },
            8 => Self::Failed { batch: body.u64()?, kind: body.error_kind()?, message: body.name()? },
            9 => Self::Notice(body.bytes("a notice", MAX_NOTICE_BYTES)?.to_vec()),
            10 => Self::Ping,
            _ => Self::Pong,
        };
        if body.rest.is_empty() { Ok(message) } else { Err(body.malformed()) }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// A message for people that fits into the limit of names.
fn clipped(message: &str) -> &[u8] {
    &message.as_bytes()[..message.floor_char_boundary(MAX_NAME_BYTES)]
}

fn put_spans(out: &mut Vec<u8>, spans: &[Span]) {
    out.extend((spans.len() as u32).to_le_bytes());
    for span in spans {
        out.extend((span.rank as u16).to_le_bytes());
        out.extend((span.region as u16).to_le_bytes());
        for number in [span.block, span.offset, span.bytes] {
            out.extend(number.to_le_bytes());
        }
    }
}

fn put_introduction(out: &mut Vec<u8>, introduction: &Introduction) {
    put_bytes(out, introduction.engine_id.as_bytes());
    out.extend(introduction.generation.to_le_bytes());
    let GeometryInput { layers, kv_heads, slice_bytes, ranks, blocks, block_tokens, order, regions } =
        *introduction.geometry.input();
    for number in [layers, kv_heads, slice_bytes, ranks, blocks, block_tokens] {
        out.extend(number.to_le_bytes());
    }
    out.push(u8::from(order == HeadOrder::TokensFirst) | u8::from(regions == Regions::Together) << 1);
    out.extend(introduction.layout_hash.to_le_bytes());
}

/// The rest of a body.
struct Body<'a> {
    rest: &'a [u8],
    name: &'static str,
}

impl<'a> Body<'a> {
    fn malformed(&self) -> DecodeError {
        DecodeError::Malformed(self.name)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self, what: &'static str, most: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()?;
        limit(what, len.into(), most as u64)?;
        self.take(len as usize)
    }

    fn name(&mut self) -> Result<String, DecodeError> {
        let bytes = self.bytes("a name", MAX_NAME_BYTES)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| self.malformed())
    }

    fn error_kind(&mut self) -> Result<ErrorKind, DecodeError> {
        ErrorKind::from_code(self.u8()?).ok_or_else(|| self.malformed())
    }

    fn spans(&mut self) -> Result<Vec<Span>, DecodeError> {
        let count = self.u32()? as usize;
        limit("a page list", count as u64, MAX_SPANS as u64)?;
        if self.rest.len() < count * SPAN_BYTES {
            return Err(self.malformed());
        }
        let mut spans = Vec::with_capacity(count);
        let mut total = 0;
        for _ in 0..count {
            let (rank, region) = (self.u16()?.into(), self.u16()?.into());
            let span = Span { rank, region, block: self.u32()?, offset: self.u32()?, bytes: self.u32()? };
            total += u64::from(span.bytes);
            spans.push(span);
        }
        if count > 1 {
            limit("a batch", total, MAX_BATCH_BYTES)?;
        }
        Ok(spans)
    }

    fn introduction(&mut self) -> Result<Introduction, DecodeError> {
        let engine_id = self.name()?;
        let generation = self.u64()?;
        let [layers, kv_heads, slice_bytes, ranks, blocks, block_tokens] =
            [self.u32()?, self.u32()?, self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        let (order, regions) = match self.u8()? {
            0 => (HeadOrder::HeadsFirst, Regions::Apart),
            1 => (HeadOrder::TokensFirst, Regions::Apart),
            2 => (HeadOrder::HeadsFirst, Regions::Together),
            3 => (HeadOrder::TokensFirst, Regions::Together),
            _ => return Err(self.malformed()),
        };
        let layout_hash = self.u64()?;
        let input = GeometryInput { layers, kv_heads, slice_bytes, ranks, blocks, block_tokens, order, regions };
        let geometry = Geometry::new(input).map_err(|_| self.malformed())?;
        if geometry.layout_hash() != layout_hash {
            return Err(self.malformed());
        }
        Ok(Introduction { engine_id, generation, geometry, layout_hash })
    }
}

/// Reads everything in `bytes` as a peer would, for tests of hostile bytes.
///
/// # Errors
/// The first error.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn introduction() -> Introduction {
        let geometry = Geometry::new(GeometryInput {
            layers: 2,
            kv_heads: 4,
            slice_bytes: 32,
            ranks: 2,
            blocks: 100,
            block_tokens: 16,
            order: HeadOrder::TokensFirst,
            regions: Regions::Together,
        })
        .expect("the sizes fit");
        let layout_hash = geometry.layout_hash();
        Introduction { engine_id: "prefill-0".to_owned(), generation: 7, geometry, layout_hash }
    }

    fn examples() -> Vec<Message> {
        let span = Span { rank: 1, region: 3, block: 99, offset: 32, bytes: 32 };
        let (kind, message) = (ErrorKind::NotHeld, "no such prompt".to_owned());
        vec![
            Message::Hello(introduction()),
            Message::Welcome(introduction()),
            Message::Refused { kind, message: message.clone() },
            Message::Read { batch: 1, request: "r".to_owned(), spans: vec![span, span] },
            Message::Data { batch: 1, bytes: 64 },
            Message::Write { batch: 2, request: "w".to_owned(), spans: vec![span], bytes: 32 },
            Message::Written { batch: 2 },
            Message::Failed { batch: 3, kind, message },
            Message::Notice(b"r:1".to_vec()),
            Message::Ping,
            Message::Pong,
        ]
    }

    fn read(frame: &[u8]) -> Result<Message, DecodeError> {
        decode_all(&[&preface(), frame].concat()).map(|mut messages| messages.remove(0))
    }

    #[test]
    fn each_message_is_read_as_it_was_written() {
        for message in examples() {
            assert_eq!(read(&message.encode()).as_ref(), Ok(&message));
        }
        for trailer in [Trailer { failure: None }, Trailer { failure: Some(ErrorKind::NotHeld) }] {
            assert_eq!(Trailer::decode(&trailer.encode()), Ok(trailer));
        }
    }

    #[test]
    fn a_damaged_truncated_or_oversized_message_is_an_error() {
        for message in examples() {
            let frame = message.encode();
            for len in 0..frame.len() {
                assert!(decode_all(&[&preface(), &frame[..len]].concat()).map_or(true, |all| all.is_empty()), "{len}");
            }
            for place in (0..frame.len()).filter(|place| !(1..4).contains(place)) {
                let mut damaged = frame.clone();
                damaged[place] ^= 0x80;
                assert!(read(&damaged).is_err(), "{message:?} at {place}");
            }
        }
        let mut header = [0; HEADER_BYTES];
        header[0] = 4;
        header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = Header::decode(&header).expect_err("it is too long").to_string();
        assert_eq!(error, "a message of 4294967295 exceeds the limit of 262144");
    }

    #[test]
    fn other_protocols_and_versions_are_named() {
        assert_eq!(check_preface(&preface()), Ok(()));
        let mut other = preface();
        other[8] = 9;
        assert_eq!(check_preface(&other), Err(DecodeError::Version(9)));
        let http = check_preface(b"GET / HTTP").expect_err("it is HTTP").to_string();
        assert!(http.contains("does not speak the KV protocol of vcr"), "{http}");
    }

    #[test]
    fn a_peer_that_lies_about_its_layout_is_found_out() {
        let lying = Introduction { layout_hash: 1, ..introduction() };
        assert_eq!(read(&Message::Hello(lying).encode()), Err(DecodeError::Malformed("Hello")));
        let many = Span { rank: 0, region: 0, block: 0, offset: 0, bytes: u32::MAX };
        let read = read(&Message::Read { batch: 1, request: String::new(), spans: vec![many; 2] }.encode());
        assert!(matches!(read, Err(DecodeError::Limit { what: "a batch", .. })));
    }

    proptest! {
        /// Peers send anything.
        #[test]
        fn any_bytes_are_messages_or_an_error(kind in 0u8..14, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let header = Header { kind, body_bytes: body.len() as u32, crc: crc32fast::hash(&body) };
            if let Ok(message) = Message::decode(&header, &body) {
                prop_assert_eq!(&message.encode()[HEADER_BYTES..], &body[..]);
            }
        }
    }
}
