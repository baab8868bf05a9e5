//! Finding messages in the bytes of a connection: ZMTP 3, as far as a listener
//! needs it.
//!
//! Both ends of a connection send a greeting, and from then on frames: a byte of
//! flags, a length of one or eight bytes, and the body. Whom a ROUTER means is
//! not among them.

/// Frames of a message that describe it. The bytes of large tensors follow them; no copy of these is kept.
const HEAD_FRAMES: usize = 2;
/// Only this much of a longer frame is kept.
const LONGEST_FRAME_BYTES: usize = 256 << 20;
/// Buffers larger than this are not kept for the next message.
const KEPT_BYTES: usize = 1 << 20;

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Follows one direction of a connection.
pub(in crate::link) struct Zmtp {
    state: State,
    head: [Vec<u8>; HEAD_FRAMES],
    /// Frames of this message that are whole.
    frames: usize,
}

enum State {
    Greeting {
        seen: usize,
    },
    /// Flags and length, as far as they have arrived.
    Header {
        bytes: [u8; 9],
        seen: usize,
    },
    Body {
        flags: u8,
        left: u64,
    },
    /// Another protocol.
    Foreign,
}

/// A complete message.
pub(in crate::link) struct Message<'a> {
    /// Its first frames; an absent one is empty.
    pub(in crate::link) head: [&'a [u8]; HEAD_FRAMES],
    /// Its number of frames.
    pub(in crate::link) frames: usize,
}

impl Zmtp {
    pub(in crate::link) fn new() -> Self {
        Self { state: State::Greeting { seen: 0 }, head: Default::default(), frames: 0 }
    }

    /// Whether the connection turned out to be one of something else.
    pub(in crate::link) fn is_foreign(&self) -> bool {
        matches!(self.state, State::Foreign)
    }

    /// Scans the next bytes, and reports each completed message.
    pub(in crate::link) fn feed(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Message<'_>)) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Foreign => return,
                State::Greeting { seen } => {
                    let part = take(&mut bytes, GREETING_BYTES - *seen);
                    // Signature and version.
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
                        // A frame may be empty.
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

    /// Goes on to the next frame if this one is whole.
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

/// The first `most` bytes, or all, taken off.
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
        /// Wherever a connection's bytes are cut, the same messages are found.
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

        /// Bytes of anything else are let pass in silence.
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
