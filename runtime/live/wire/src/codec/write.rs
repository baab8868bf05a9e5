//! Writes MessagePack into a buffer of the caller. Each value has its shortest encoding, as in frontends and the
//! real engine.
//!
//! Tokens, short texts and short lists are written for every request in every step, so each is appended here as a
//! whole. The crate rmp writes the rest, out of line: it appends markers and values separately, which takes half as
//! long again.

use std::fmt::Debug;

use rmp::{Marker, encode};

pub(crate) fn nil(out: &mut Vec<u8>) {
    written(encode::write_nil(out));
}

pub(crate) fn bool(out: &mut Vec<u8>, value: bool) {
    written(encode::write_bool(out, value));
}

pub(crate) fn uint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x1_0000..=0xffff_ffff => {
            let [a, b, c, d] = (value as u32).to_be_bytes();
            out.extend_from_slice(&[Marker::U32.to_u8(), a, b, c, d]);
        }
        _ => other_uint(out, value),
    }
}

pub(crate) fn int(out: &mut Vec<u8>, value: i64) {
    written(encode::write_sint(out, value));
}

pub(crate) fn f64(out: &mut Vec<u8>, value: f64) {
    written(encode::write_f64(out, value));
}

pub(crate) fn str(out: &mut Vec<u8>, value: &str) {
    let len = value.len();
    match len {
        0..=31 => out.push(Marker::FixStr(len as u8).to_u8()),
        32..=0xff => out.extend_from_slice(&[Marker::Str8.to_u8(), len as u8]),
        _ => long_str_len(out, len),
    }
    out.extend_from_slice(value.as_bytes());
}

pub(crate) fn ext(out: &mut Vec<u8>, code: i8, value: &[u8]) {
    written(encode::write_ext_meta(out, checked(value.len()), code));
    out.extend_from_slice(value);
}

pub(crate) fn array(out: &mut Vec<u8>, len: usize) {
    match len {
        0..=15 => out.push(Marker::FixArray(len as u8).to_u8()),
        _ => long_array_len(out, len),
    }
}

pub(crate) fn map(out: &mut Vec<u8>, len: usize) {
    written(encode::write_map_len(out, checked(len)));
}

#[inline(never)]
fn other_uint(out: &mut Vec<u8>, value: u64) {
    written(encode::write_uint(out, value));
}

#[inline(never)]
fn long_str_len(out: &mut Vec<u8>, len: usize) {
    written(encode::write_str_len(out, checked(len)));
}

#[inline(never)]
fn long_array_len(out: &mut Vec<u8>, len: usize) {
    written(encode::write_array_len(out, checked(len)));
}

fn written<T, E: Debug>(result: Result<T, E>) {
    _ = result.expect("a vector takes all");
}

fn checked(len: usize) -> u32 {
    u32::try_from(len).expect("a message has less than 4 GiB")
}
