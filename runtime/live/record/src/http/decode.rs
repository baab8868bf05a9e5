//! Decodes the content encodings of bodies.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::{GzDecoder, ZlibDecoder};

/// The size of Brotli's output buffer.
const BUFFER_BYTES: usize = 4096;

/// A part of a body: its time and its bytes.
pub(super) type Part = (u64, Vec<u8>);

/// Collects the decoded bytes of a part, up to a limit.
struct Unpacked {
    part: Vec<u8>,
    left_bytes: usize,
}

impl Write for Unpacked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left_bytes = self.left_bytes.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.part.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes the parts of a body. Returns `None` if the encoding is unknown, the body is damaged, or it decodes to
/// more than `max_bytes`.
pub(super) fn decode(encoding: &str, parts: &[Part], max_bytes: usize) -> Option<Vec<Part>> {
    let into = Unpacked { part: Vec::new(), left_bytes: max_bytes };
    match encoding.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => unpack(GzDecoder::new(into), GzDecoder::get_mut, parts).ok(),
        "deflate" => unpack(ZlibDecoder::new(into), ZlibDecoder::get_mut, parts).ok(),
        "br" => unpack(DecompressorWriter::new(into, BUFFER_BYTES), DecompressorWriter::get_mut, parts).ok(),
        "zstd" => {
            let decoder = zstd::stream::write::Decoder::new(into).ok()?;
            unpack(decoder, zstd::stream::write::Decoder::get_mut, parts).ok()
        }
        _ => None,
    }
}

fn unpack<D: Write>(
    mut decoder: D,
    unpacked: impl Fn(&mut D) -> &mut Unpacked,
    parts: &[Part],
) -> io::Result<Vec<Part>> {
    let mut all = Vec::with_capacity(parts.len());
    for (at_ns, bytes) in parts {
        decoder.write_all(bytes)?;
        decoder.flush()?;
        let part = std::mem::take(&mut unpacked(&mut decoder).part);
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

    /// The text that the test of all encodings uses, compressed by Brotli's own encoder.
    const BROTLI: &str = "1bb701f81d076e2cc73b37afb30421736b059d373a1d56f67627312088b00aa0848a510b7c7305";
    /// `first` and `second`, each followed by a flush, compressed by the same encoder.
    const BROTLI_FLUSHED: [&str; 2] = ["0b0200f82500629080c000", "2800805f022008894918"];
    /// 16 MiB of zeros, compressed.
    const BROTLI_ZEROS: &str = "cbffff3ff82700e2b14020f7fe8fffff7ff04f00c4611180eefddf";

    fn bytes(hex: &str) -> Vec<u8> {
        hex::decode(hex).expect("hexadecimal")
    }

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
            ("br", bytes(BROTLI)),
        ];
        for (encoding, packed) in packed {
            let parts = decode(encoding, &in_parts(&packed), 1 << 20).expect(encoding);
            assert_eq!(text_of(&parts), text, "{encoding}");
            assert!(decode(encoding, &in_parts(&packed), 100).is_none(), "{encoding} beyond the limit");
            assert!(decode(encoding, &in_parts(b"not packed"), 1 << 20).is_none(), "{encoding}");
        }
        assert!(decode("compress", &in_parts(b"x"), 100).is_none());
    }

    #[test]
    fn a_body_that_was_cut_is_unpacked_as_far_as_it_came() {
        let packed = bytes(BROTLI_FLUSHED[0]);
        let parts = decode("br", &[(1, packed.clone())], 100).expect("a beginning");
        assert_eq!(text_of(&parts), b"first");
        let damaged = [packed, vec![0xff; 40]].concat();
        assert!(decode("br", &in_parts(&damaged), 100).is_none());
        let followed = [bytes(BROTLI), b"more".to_vec()].concat();
        assert!(decode("br", &[(1, followed)], 1 << 20).is_none());
    }

    #[test]
    fn few_bytes_do_not_unpack_to_more_than_the_limit() {
        let packed = bytes(BROTLI_ZEROS);
        assert!(decode("br", &[(1, packed.clone())], (1 << 24) - 1).is_none());
        let parts = decode("br", &[(1, packed)], 1 << 24).expect("it is Brotli");
        assert_eq!(text_of(&parts).len(), 1 << 24);
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
        let expected = [(5, b"first".to_vec()), (9, b"second".to_vec())];
        assert_eq!(parts, expected);
        let [first, second] = BROTLI_FLUSHED.map(bytes);
        assert_eq!(decode("br", &[(5, first), (9, second)], 100).expect("it is Brotli"), expected);
    }
}
