//! Random strings of a format, such as dates and addresses.

use alloc::format;
use alloc::string::String;

use vcr_guest_sdk::Rng;

use crate::schema::Notation;
use crate::values::draw::below;
use crate::values::words::word;

pub(crate) fn notated(notation: Notation, rng: &mut Rng) -> String {
    match notation {
        Notation::Date => date(rng),
        Notation::Time => time(rng),
        Notation::DateTime => format!("{}T{}", date(rng), time(rng)),
        Notation::Duration => format!("PT{}M", 1 + below(rng, 59)),
        Notation::Email => format!("{}@example.com", word(rng)),
        Notation::Hostname => format!("{}.example.com", word(rng)),
        // Addresses that are reserved for documentation.
        Notation::Ipv4 => format!("192.0.2.{}", 1 + below(rng, 254)),
        Notation::Ipv4Network => "192.0.2.0/24".into(),
        Notation::Ipv6 => format!("2001:db8::{:x}", 1 + below(rng, 0xfffe)),
        Notation::Ipv6Network => "2001:db8::/32".into(),
        Notation::Uri => format!("https://example.com/{}", word(rng)),
        Notation::Uuid => uuid(rng),
        Notation::JsonPointer => format!("/{}", word(rng)),
        Notation::RelativeJsonPointer => format!("{}/{}", below(rng, 3), word(rng)),
        Notation::Json => format!("\"{}\"", word(rng)),
        Notation::Base64 => base64(word(rng)),
    }
}

fn date(rng: &mut Rng) -> String {
    // Every month has at least 28 days.
    format!("20{:02}-{:02}-{:02}", 20 + below(rng, 10), 1 + below(rng, 12), 1 + below(rng, 28))
}

fn time(rng: &mut Rng) -> String {
    format!("{:02}:{:02}:{:02}Z", below(rng, 24), below(rng, 60), below(rng, 60))
}

/// A random UUID of version 4.
fn uuid(rng: &mut Rng) -> String {
    let [high, low] = [rng.next_u64(), rng.next_u64()];
    let variant = 0x8000 | (low >> 48 & 0x3fff);
    format!(
        "{:08x}-{:04x}-4{:03x}-{variant:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low & 0xffff_ffff_ffff
    )
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut written = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = (0..3).fold(0, |bits, index| bits << 8 | u32::from(chunk.get(index).copied().unwrap_or(0)));
        for index in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * index) & 63) as usize];
            written.push(if index > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    written
}
