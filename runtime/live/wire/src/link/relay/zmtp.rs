//! Finds messages in the bytes of a connection: ZMTP 3, as far as an observer needs it.
//!
//! Both ends of a connection send a greeting, and then frames. A frame is a byte of flags, a length of one or eight
//! bytes, and a body. The peer that a ROUTER sends to is not part of the bytes.

/// Number of a message's first frames that describe it. The frames after them are bytes of large tensors, which are
/// not copied.
const HEAD_FRAMES: usize = 2;
/// Maximum number of bytes that are kept of a frame.
const LONGEST_FRAME_BYTES: usize = 256 << 20;
/// Maximum size of a buffer that is kept for the next message.
const KEPT_BYTES: usize = 1 << 20;

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The state of one direction of a connection.
pub(in crate::link) struct Zmtp {
    state: State,
    head: [Vec<u8>; HEAD_FRAMES],
    /// Number of complete frames of the current message.
    frames: usize,
}

enum State {
    Greeting {
        seen: usize,
    },
    /// Flags and length, of which `seen` bytes have arrived.
    Header {
        bytes: [u8; 9],
        seen: usize,
    },
    Body {
        flags: u8,
        left: u64,
    },
    /// The bytes are another protocol.
    Foreign,
}

pub(in crate::link) struct Message<'a> {
    /// The first frames; a missing frame is empty.
    pub(in crate::link) head: [&'a [u8]; HEAD_FRAMES],
    /// The number of frames.
    pub(in crate::link) frames: usize,
}

impl Zmtp {
    pub(in crate::link) fn new() -> Self {
        Self { state: State::Greeting { seen: 0 }, head: Default::default(), frames: 0 }
    }

    pub(in crate::link) fn is_foreign(&self) -> bool {
        matches!(self.state, State::Foreign)
    }

    /// Scans the next bytes, and calls `tell` with each completed message.
    pub(in crate::link) fn feed(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Message<'_>)) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Foreign => return,
                State::Greeting { seen } => {
                    let part = take(&mut bytes, GREETING_BYTES - *seen);
                    // Check the signature and the version.
                    let is_ours = part.iter().zip(*seen..).all(|(byte, at)| match at {
                        0 => *byte == 0xff,
                        9 => *byte == 0x7f,
                        10 => *byte >= 3,
                        _ => true,
                    });
                    *seen += part.len();
                    if !is_ours {
                        self.state = State::Foreign;
                    } else if *seen == GREETING_BYTES {
                        self.state = State::Header { bytes: [0; 9], seen: 0 };
                    }
                }
                State::Header { bytes: header, seen } => {
                    let wanted = if *seen > 0 && header[0] & LONG != 0 { 9 } else { 2 };
                    let part = take(&mut bytes, if *seen == 0 { 1 } else { wanted - *seen });
                    header[*seen..*seen + part.len()].copy_from_slice(part);
                    *seen += part.len();
                    if *seen == wanted && *seen > 1 {
                        let long = u64::from_be_bytes(header[1..].try_into().expect("eight bytes follow the flags"));
                        let flags = header[0];
                        let left = if flags & LONG != 0 { long } else { header[1].into() };
                        self.state = State::Body { flags, left };
                        // This call completes an empty frame.
                        self.end_frame(&mut tell);
                    }
                }
                State::Body { flags, left } => {
                    let part = take(&mut bytes, usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= part.len() as u64;
                    if *flags & COMMAND == 0
                        && let Some(kept) = self.head.get_mut(self.frames)
                    {
                        kept.extend_from_slice(&part[..part.len().min(LONGEST_FRAME_BYTES.saturating_sub(kept.len()))]);
                    }
                    self.end_frame(&mut tell);
                }
            }
        }
    }

    /// Continues with the next frame if this one is complete.
    fn end_frame(&mut self, tell: &mut impl FnMut(Message<'_>)) {
        let State::Body { flags, left: 0 } = self.state else { return };
        self.state = State::Header { bytes: [0; 9], seen: 0 };
        if flags & COMMAND != 0 {
            return;
        }
        self.frames += 1;
        if flags & MORE == 0 {
            tell(Message { head: [&self.head[0], &self.head[1]], frames: self.frames });
            self.frames = 0;
            for kept in &mut self.head {
                kept.clear();
                kept.shrink_to(KEPT_BYTES);
            }
        }
    }
}

/// Removes the first `most` bytes, or all if there are fewer, and returns them.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (part, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    part
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn greeting() -> Vec<u8> {
        let mut bytes = vec![0; GREETING_BYTES];
        (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
        bytes
    }

    fn put(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
        if body.len() > 255 {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        } else {
            out.extend([flags, body.len() as u8]);
        }
        out.extend(body);
    }

    proptest! {
        /// The same messages are found wherever a connection's bytes are split.
        #[test]
        fn messages_are_found_in_any_pieces(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..5), 0..6),
            piece in 1_usize..500,
        ) {
            let mut bytes = greeting();
            for frames in &messages {
                put(&mut bytes, COMMAND, b"\x04PING");
                for (index, frame) in frames.iter().enumerate() {
                    put(&mut bytes, if index + 1 < frames.len() { MORE } else { 0 }, frame);
                }
            }
            let mut zmtp = Zmtp::new();
            let mut found = Vec::new();
            for part in bytes.chunks(piece) {
                zmtp.feed(part, |message| found.push((message.frames, message.head.map(<[u8]>::to_vec))));
            }
            let of = |frames: &[Vec<u8>], index: usize| frames.get(index).cloned().unwrap_or_default();
            let expected: Vec<_> = messages.iter().map(|frames| (frames.len(), [of(frames, 0), of(frames, 1)])).collect();
            prop_assert_eq!(found, expected);
        }

        /// Bytes of other protocols cause neither a panic nor a message.
        #[test]
        fn any_bytes_may_come(bytes in prop::collection::vec(any::<u8>(), 0..300), greeted in any::<bool>()) {
            let mut zmtp = Zmtp::new();
            if greeted {
                zmtp.feed(&greeting(), |_| {});
            }
            zmtp.feed(&bytes, |_| {});
        }
    }

    #[test]
    fn other_protocols_are_seen_to_be_others() {
        let mut zmtp = Zmtp::new();
        zmtp.feed(b"GET / HTTP/1.1", |_| {});
        assert!(zmtp.is_foreign());
    }
}
