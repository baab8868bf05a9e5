//! MessagePack into a buffer of the caller, each value in its shortest form,
//! as both frontends and the real engine write it.

use rmp::Marker;

pub(crate) fn nil(out: &mut Vec<u8>) {
    out.push(Marker::Null.to_u8());
}

pub(crate) fn bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { Marker::True } else { Marker::False }.to_u8());
}

pub(crate) fn uint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[Marker::U8.to_u8(), value as u8]),
        0x100..=0xffff => tagged(out, Marker::U16, (value as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => tagged(out, Marker::U32, (value as u32).to_be_bytes()),
        _ => tagged(out, Marker::U64, value.to_be_bytes()),
    }
}

pub(crate) fn int(out: &mut Vec<u8>, value: i64) {
    match value {
        0.. => uint(out, value as u64),
        -0x20..=-1 => out.push(value as i8 as u8),
        -0x80..=-0x21 => tagged(out, Marker::I8, (value as i8).to_be_bytes()),
        -0x8000..=-0x81 => tagged(out, Marker::I16, (value as i16).to_be_bytes()),
        -0x8000_0000..=-0x8001 => tagged(out, Marker::I32, (value as i32).to_be_bytes()),
        _ => tagged(out, Marker::I64, value.to_be_bytes()),
    }
}

pub(crate) fn f64(out: &mut Vec<u8>, value: f64) {
    tagged(out, Marker::F64, value.to_be_bytes());
}

pub(crate) fn f32(out: &mut Vec<u8>, value: f32) {
    tagged(out, Marker::F32, value.to_be_bytes());
}

pub(crate) fn str(out: &mut Vec<u8>, value: &str) {
    let len = value.len();
    match len {
        0..=31 => out.push(Marker::FixStr(len as u8).to_u8()),
        32..=0xff => out.extend_from_slice(&[Marker::Str8.to_u8(), len as u8]),
        _ => long(out, len, Marker::Str16, Marker::Str32),
    }
    out.extend_from_slice(value.as_bytes());
}

pub(crate) fn bin(out: &mut Vec<u8>, value: &[u8]) {
    match value.len() {
        len @ 0..=0xff => out.extend_from_slice(&[Marker::Bin8.to_u8(), len as u8]),
        len => long(out, len, Marker::Bin16, Marker::Bin32),
    }
    out.extend_from_slice(value);
}

pub(crate) fn ext(out: &mut Vec<u8>, code: i8, value: &[u8]) {
    match value.len() {
        1 => out.push(Marker::FixExt1.to_u8()),
        2 => out.push(Marker::FixExt2.to_u8()),
        4 => out.push(Marker::FixExt4.to_u8()),
        8 => out.push(Marker::FixExt8.to_u8()),
        16 => out.push(Marker::FixExt16.to_u8()),
        len @ 0..=0xff => out.extend_from_slice(&[Marker::Ext8.to_u8(), len as u8]),
        len => long(out, len, Marker::Ext16, Marker::Ext32),
    }
    out.push(code as u8);
    out.extend_from_slice(value);
}

pub(crate) fn array(out: &mut Vec<u8>, len: usize) {
    match len {
        0..=15 => out.push(Marker::FixArray(len as u8).to_u8()),
        _ => long(out, len, Marker::Array16, Marker::Array32),
    }
}

pub(crate) fn map(out: &mut Vec<u8>, len: usize) {
    match len {
        0..=15 => out.push(Marker::FixMap(len as u8).to_u8()),
        _ => long(out, len, Marker::Map16, Marker::Map32),
    }
}

fn tagged<const N: usize>(out: &mut Vec<u8>, marker: Marker, bytes: [u8; N]) {
    out.push(marker.to_u8());
    out.extend_from_slice(&bytes);
}

fn long(out: &mut Vec<u8>, len: usize, short: Marker, wide: Marker) {
    match u16::try_from(len) {
        Ok(len) => tagged(out, short, len.to_be_bytes()),
        Err(_) => {
            let len = u32::try_from(len).expect("a message has less than 4 GiB");
            tagged(out, wide, len.to_be_bytes());
        }
    }
}
