//! Encodes messages.

use super::{HEADER_BYTES, MAX_NAME_BYTES, Message, PeerInfo};
use crate::arena::Span;
use crate::geometry::{GeometryInput, HeadOrder, Regions};

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

    /// Encodes the message as a frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        match self {
            Self::Hello(peer_info) | Self::Welcome(peer_info) => put_introduction(&mut out, peer_info),
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
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The error text, cut to the maximum length of names.
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

fn put_introduction(out: &mut Vec<u8>, peer_info: &PeerInfo) {
    put_bytes(out, peer_info.engine_id.as_bytes());
    out.extend(peer_info.generation.to_le_bytes());
    let GeometryInput { layers, kv_heads, slice_bytes, ranks, blocks, block_tokens, order, regions } =
        *peer_info.geometry.input();
    for number in [layers, kv_heads, slice_bytes, ranks, blocks, block_tokens] {
        out.extend(number.to_le_bytes());
    }
    let regions = match regions {
        Regions::Apart => 0,
        Regions::Together => 1,
        Regions::Latent => 2,
    };
    out.push(u8::from(order == HeadOrder::TokensFirst) | regions << 1);
    out.extend(peer_info.layout_hash.to_le_bytes());
}
