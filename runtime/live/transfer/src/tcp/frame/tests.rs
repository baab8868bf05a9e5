use proptest::prelude::*;

use super::*;
use crate::geometry::{GeometryInput, HeadOrder, Regions};

fn peer_info(regions: Regions) -> PeerInfo {
    let geometry = Geometry::new(GeometryInput {
        layers: 2,
        kv_heads: 4,
        slice_bytes: 32,
        ranks: 2,
        blocks: 100,
        block_tokens: 16,
        order: HeadOrder::TokensFirst,
        regions,
    })
    .expect("the sizes fit");
    let layout_hash = geometry.layout_hash();
    PeerInfo { engine_id: "prefill-0".to_owned(), generation: 7, geometry, layout_hash }
}

fn examples() -> Vec<Message> {
    let span = Span { rank: 1, region: 3, block: 99, offset: 32, bytes: 32 };
    let (kind, message) = (ErrorKind::NotHeld, "no such prompt".to_owned());
    vec![
        Message::Hello(peer_info(Regions::Apart)),
        Message::Hello(peer_info(Regions::Latent)),
        Message::Welcome(peer_info(Regions::Together)),
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
    let lying = PeerInfo { layout_hash: 1, ..peer_info(Regions::Together) };
    assert_eq!(read(&Message::Hello(lying).encode()), Err(DecodeError::Malformed("Hello")));
    let many = Span { rank: 0, region: 0, block: 0, offset: 0, bytes: u32::MAX };
    let read = read(&Message::Read { batch: 1, request: String::new(), spans: vec![many; 2] }.encode());
    assert!(matches!(read, Err(DecodeError::Limit { what: "a batch", .. })));
}

proptest! {
    /// Peers may send any bytes.
    #[test]
    fn any_bytes_are_messages_or_an_error(kind in 0u8..14, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let header = Header { kind, body_bytes: body.len() as u32, crc: crc32fast::hash(&body) };
        if let Ok(message) = Message::decode(&header, &body) {
            prop_assert_eq!(&message.encode()[HEADER_BYTES..], &body[..]);
        }
    }
}
