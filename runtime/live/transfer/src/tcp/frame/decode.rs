//! Decodes messages, within limits.

use super::{
    DecodeError, Header, MAX_BATCH_BYTES, MAX_NAME_BYTES, MAX_NOTICE_BYTES, MAX_SPANS, Message, PeerInfo, limit,
};
use crate::arena::Span;
use crate::error::ErrorKind;
use crate::geometry::{Geometry, GeometryInput, HeadOrder, Regions};

const SPAN_BYTES: usize = 16;

impl Message {
    /// Decodes the body of a frame.
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
            1 => Self::Hello(body.peer_info()?),
            2 => Self::Welcome(body.peer_info()?),
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

    fn peer_info(&mut self) -> Result<PeerInfo, DecodeError> {
        let engine_id = self.name()?;
        let generation = self.u64()?;
        let [layers, kv_heads, slice_bytes, ranks, blocks, block_tokens] =
            [self.u32()?, self.u32()?, self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        let layout = self.u8()?;
        let order = if layout & 1 == 0 { HeadOrder::HeadsFirst } else { HeadOrder::TokensFirst };
        let regions = match layout >> 1 {
            0 => Regions::Apart,
            1 => Regions::Together,
            2 => Regions::Latent,
            _ => return Err(self.malformed()),
        };
        let layout_hash = self.u64()?;
        let input = GeometryInput { layers, kv_heads, slice_bytes, ranks, blocks, block_tokens, order, regions };
        let geometry = Geometry::new(input).map_err(|_| self.malformed())?;
        if geometry.layout_hash() != layout_hash {
            return Err(self.malformed());
        }
        Ok(PeerInfo { engine_id, generation, geometry, layout_hash })
    }
}
