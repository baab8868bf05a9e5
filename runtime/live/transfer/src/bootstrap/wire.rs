//! The messages in a room, and their encoding.
//!
//! ```text
//! decode to prefill:  the room      a number: 8 bytes, little-endian; a name: its length in 2 bytes, and the name
//! prefill to decode:  1             the prompt is finished; or 0: it will not be
//!                     envelope      magic `vcrR`, a version of 1 byte, the length of the body in 4 bytes, the body:
//!                                   JSON, a description or the reason
//! decode to prefill:  1             the description was taken: a notice will follow when the KV is not needed any more
//! ```
//!
//! The room's number and the first byte of the answer are the bootstrap protocol of NVIDIA Dynamo's mocker. A
//! decode engine of Dynamo closes the connection after that byte. A prefill engine of Dynamo closes it too, so no
//! description arrives.

use crate::{Description, Peer, Room};
use serde::{Deserialize, Serialize};

/// The prompt is finished, or the description was taken.
pub const READY: u8 = 1;
/// The prompt will not be finished.
pub const REFUSED: u8 = 0;
/// The version of the envelope.
pub const VERSION: u8 = 1;
/// The first bytes of an envelope.
pub const MAGIC: [u8; 4] = *b"vcrR";
/// Length of an envelope without its body.
pub const ENVELOPE_BYTES: usize = 9;
/// Maximum length of a body: enough for the blocks of a prompt of millions of tokens.
pub const MAX_BODY_BYTES: u32 = 8 << 20;
/// Maximum length of the name of a room, and of all other names.
pub const MAX_NAME_BYTES: usize = 512;

/// The reason why bytes are no message of a room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("it answers with byte {0:#04x}, expected 0x01")]
    Answer(u8),
    #[error("it does not describe its KV as vcr does (it sent {0:02x?})")]
    Magic([u8; 4]),
    #[error("it has version {0} of the room protocol, expected version {VERSION}")]
    Version(u8),
    #[error("its description has {0} bytes, at most {MAX_BODY_BYTES} are allowed")]
    Length(u32),
    #[error("its description cannot be read: {0}")]
    Body(String),
    #[error("a room's name has {0} bytes, expected 1 to {MAX_NAME_BYTES} of UTF-8")]
    Room(usize),
}

/// How a protocol identifies rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomKind {
    Number,
    /// Rooms are named by texts.
    Name,
}

/// Encodes a room.
#[must_use]
pub fn encode_room(room: &Room) -> Vec<u8> {
    match room {
        Room::Number(number) => number.to_le_bytes().to_vec(),
        Room::Name(name) => {
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
            [&length.to_le_bytes()[..], name.as_bytes()].concat()
        }
    }
}

/// Decodes the length of a room's name from the two bytes before it.
pub fn name_bytes(length: [u8; 2]) -> Result<usize, WireError> {
    let length = usize::from(u16::from_le_bytes(length));
    if (1..=MAX_NAME_BYTES).contains(&length) { Ok(length) } else { Err(WireError::Room(length)) }
}

/// Decodes the name of a room.
pub fn named_room(name: Vec<u8>) -> Result<Room, WireError> {
    let length = name.len();
    String::from_utf8(name).map(Room::Name).map_err(|_| WireError::Room(length))
}

/// Encodes an envelope.
#[must_use]
pub fn envelope(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&MAGIC[..], &[VERSION], &length.to_le_bytes(), body].concat()
}

/// Decodes an envelope without its body, and returns the length of the body.
///
/// # Errors
/// The bytes are no envelope, or one of another version, or its body is too long.
pub fn body_bytes(envelope: [u8; ENVELOPE_BYTES]) -> Result<usize, WireError> {
    let [m0, m1, m2, m3, version, l0, l1, l2, l3] = envelope;
    let magic = [m0, m1, m2, m3];
    if magic != MAGIC {
        return Err(WireError::Magic(magic));
    }
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    if length > MAX_BODY_BYTES { Err(WireError::Length(length)) } else { Ok(length as usize) }
}

/// The field names are those of vLLM's `kv_transfer_params`.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    remote_engine_id: String,
    remote_request_id: String,
    remote_host: String,
    remote_port: u16,
    remote_block_ids: BlockIds,
    remote_registration_generation: Option<u64>,
    transfer_mode: Mode,
}

/// Block numbers: a list for each KV-cache group, or a single list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum BlockIds {
    OneGroup(Vec<u32>),
    Groups(Vec<Vec<u32>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Pull,
    Push,
}

/// Encodes a description as the body of an envelope.
#[must_use]
pub fn encode_description(description: &Description) -> Vec<u8> {
    let Description { peer, request, blocks, is_pushed } = description;
    let body = Body {
        remote_engine_id: peer.engine_id.clone(),
        remote_request_id: request.clone(),
        remote_host: peer.host.clone(),
        remote_port: peer.port,
        remote_block_ids: match &blocks[..] {
            [blocks] => BlockIds::OneGroup(blocks.clone()),
            groups => BlockIds::Groups(groups.to_vec()),
        },
        remote_registration_generation: peer.generation,
        transfer_mode: if *is_pushed { Mode::Push } else { Mode::Pull },
    };
    serde_json::to_vec(&body).unwrap_or_default()
}

/// Decodes the description in the body of a request.
pub fn decode_description(body: &[u8]) -> Result<Description, WireError> {
    let Body {
        remote_engine_id,
        remote_request_id,
        remote_host,
        remote_port,
        remote_block_ids,
        remote_registration_generation,
        transfer_mode,
    } = serde_json::from_slice(body).map_err(|error| WireError::Body(error.to_string()))?;
    let names = [
        ("remote_engine_id", &remote_engine_id),
        ("remote_request_id", &remote_request_id),
        ("remote_host", &remote_host),
    ];
    for (key, name) in names {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let length = name.len();
            return Err(WireError::Body(format!("{key} has {length} bytes, expected 1 to {MAX_NAME_BYTES}")));
        }
    }
    let peer = Peer {
        host: remote_host,
        port: remote_port,
        engine_id: remote_engine_id,
        generation: remote_registration_generation,
    };
    let is_pushed = transfer_mode == Mode::Push;
    let blocks = match remote_block_ids {
        BlockIds::OneGroup(blocks) => vec![blocks],
        BlockIds::Groups(groups) => groups,
    };
    Ok(Description { peer, request: remote_request_id, blocks, is_pushed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn description() -> Description {
        let peer = Peer { host: "p".to_owned(), port: 5600, engine_id: "e".to_owned(), generation: Some(7) };
        Description { peer, request: "r".to_owned(), blocks: vec![vec![3, 1, 2]], is_pushed: false }
    }

    #[test]
    fn rooms_are_numbers_of_eight_bytes_or_names() {
        assert_eq!(encode_room(&Room::Number(0x0102)), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_room(&Room::Name("ab".to_owned())), [2, 0, b'a', b'b']);
        assert_eq!(name_bytes([2, 0]), Ok(2));
        assert_eq!(name_bytes([0, 0]), Err(WireError::Room(0)));
        assert_eq!(name_bytes([1, 2]), Err(WireError::Room(513)));
        assert_eq!(named_room(vec![0xff]), Err(WireError::Room(1)));
    }

    #[test]
    fn envelopes_of_others_and_lying_lengths_are_named() {
        let read = |bytes: &[u8]| body_bytes(bytes[..ENVELOPE_BYTES].try_into().expect("nine bytes"));
        assert_eq!(read(&envelope(b"{}")), Ok(2));
        let mut other = envelope(b"{}");
        other[4] = 9;
        let error = read(&other).expect_err("another version").to_string();
        assert_eq!(error, "it has version 9 of the room protocol, expected version 1");
        let error = read(b"HTTP/1.1 400").expect_err("it is HTTP").to_string();
        assert!(error.contains("does not describe its KV as vcr does"), "{error}");
        other[4..9].copy_from_slice(&[1, 0xff, 0xff, 0xff, 0xff]);
        let error = read(&other).expect_err("it is too long").to_string();
        assert_eq!(error, "its description has 4294967295 bytes, at most 8388608 are allowed");
    }

    #[test]
    fn descriptions_come_back_and_truncated_ones_are_errors() {
        let grouped = Description { blocks: vec![vec![3, 1, 2], vec![0, 5]], ..description() };
        assert_eq!(decode_description(&encode_description(&grouped)), Ok(grouped));
        let body = encode_description(&description());
        assert_eq!(decode_description(&body), Ok(description()));
        for length in 0..body.len() {
            assert!(matches!(decode_description(&body[..length]), Err(WireError::Body(_))), "{length}");
        }
        let long = Description { request: "r".repeat(MAX_NAME_BYTES + 1), ..description() };
        let error = decode_description(&encode_description(&long)).expect_err("a name is too long").to_string();
        assert!(error.contains("remote_request_id has 513 bytes"), "{error}");
    }

    proptest! {
        /// Peers may send any bytes.
        #[test]
        fn any_bytes_are_a_description_or_an_error(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(description) = decode_description(&body) {
                prop_assert_eq!(decode_description(&encode_description(&description)), Ok(description));
            }
        }
    }
}
