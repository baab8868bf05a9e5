//! Undoing the encodings of bodies.

use std::io::{self, Write};

use flate2::write::{GzDecoder, ZlibDecoder};

/// Bytes that are unpacked at a time: each grows by a factor of about 1,000 at most.
const STEP_BYTES: usize = 4096;

/// A part of a body: its time, and its bytes.
pub(super) type Part = (u64, Vec<u8>);

/// The parts of a body without its encoding; `None` if the encoding is unknown, the body is damaged, or it unpacks to
/// more than `max_bytes`.
pub(super) fn decode(encoding: &str, parts: &[Part], max_bytes: usize) -> Option<Vec<Part>> {
    match encoding.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => unpack(GzDecoder::new(Vec::new()), GzDecoder::get_mut, parts, max_bytes).ok(),
        "deflate" => unpack(ZlibDecoder::new(Vec::new()), ZlibDecoder::get_mut, parts, max_bytes).ok(),
        "zstd" => {
            let decoder = zstd::stream::write::Decoder::new(Vec::new()).ok()?;
            unpack(decoder, zstd::stream::write::Decoder::get_mut, parts, max_bytes).ok()
        }
        _ => None,
    }
}

fn unpack<D: Write>(
    mut decoder: D,
    unpacked: impl Fn(&mut D) -> &mut Vec<u8>,
    parts: &[Part],
    max_bytes: usize,
) -> io::Result<Vec<Part>> {
    let mut total_bytes = 0;
    let mut all = Vec::with_capacity(parts.len());
    for (at_ns, bytes) in parts {
        let mut part = Vec::new();
        for step in bytes.chunks(STEP_BYTES) {
            decoder.write_all(step)?;
            decoder.flush()?;
            part.append(unpacked(&mut decoder));
            if total_bytes + part.len() > max_bytes {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        total_bytes += part.len();
        if !part.is_empty() {
            all.push((*at_ns, part));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    fn in_parts(packed: &[u8]) -> Vec<Part> {
        packed.chunks(7).zip(1..).map(|(part, at_ns)| (at_ns, part.to_vec())).collect()
    }

    fn text_of(parts: &[Part]) -> Vec<u8> {
        parts.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
    }

    #[test]
    fn known_encodings_are_undone_part_by_part() {
        let text = b"data: one\n\ndata: two\n\n".repeat(20);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&text).expect("memory");
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(&text).expect("memory");
        let packed = [
            ("gzip", gzip.finish().expect("memory")),
            ("deflate", deflate.finish().expect("memory")),
            ("ZSTD", zstd::encode_all(&text[..], 3).expect("memory")),
        ];
        for (encoding, packed) in packed {
            let parts = decode(encoding, &in_parts(&packed), 1 << 20).expect(encoding);
            assert_eq!(text_of(&parts), text, "{encoding}");
            assert!(decode(encoding, &in_parts(&packed), 100).is_none(), "{encoding} beyond the limit");
            assert!(decode(encoding, &in_parts(b"not packed"), 1 << 20).is_none(), "{encoding}");
        }
        assert!(decode("br", &in_parts(b"x"), 100).is_none());
    }

    #[test]
    fn a_part_that_was_flushed_has_its_own_time() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let mut parts = Vec::new();
        for (at_ns, text) in [(5, "first"), (9, "second")] {
            gzip.write_all(text.as_bytes()).expect("memory");
            gzip.flush().expect("memory");
            parts.push((at_ns, std::mem::take(gzip.get_mut())));
        }
        let parts = decode("gzip", &parts, 100).expect("it is gzip");
        assert_eq!(parts, [(5, b"first".to_vec()), (9, b"second".to_vec())]);
    }
}
