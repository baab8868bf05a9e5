use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// Incompressible data.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn all(mut stream: Unpacked<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn packed_or_not_the_bytes_are_the_same() {
    for text in [&b""[..], b"(", b"a", b"a line\n", &noise(1_000_000)] {
        for (stored, packing) in
            [(text.to_vec(), None), (gzip(text), Some(Packing::Gzip)), (zst(text), Some(Packing::Zstd))]
        {
            let mut stream = Unpacked::new(&stored[..]).unwrap();
            assert_eq!(stream.packing(), packing);
            for most in [1, 3, 300_000] {
                assert_eq!(stream.peek(most).unwrap(), &text[..text.len().min(most)]);
            }
            let mut first = [0; 2];
            let read = stream.read(&mut first).unwrap();
            assert_eq!(stream.peek(5).unwrap(), &text[read..text.len().min(read + 5)]);
            assert_eq!(all(stream).unwrap(), &text[read..]);
        }
    }
}

#[test]
fn members_and_frames_are_joined() {
    for pack in [gzip, zst] {
        let joined = [pack(b"1\n"), pack(b"2\n")].concat();
        assert_eq!(all(Unpacked::new(&joined[..]).unwrap()).unwrap(), b"1\n2\n");
    }
}

/// The archive of a killed process can be read up to its last byte, and is known to be truncated.
#[test]
fn an_archive_that_is_cut_off_says_so() {
    let text = noise(400_000);
    for whole in [gzip(&text), zst(&text)] {
        for len in [2, 4, 9, whole.len() / 2, whole.len() - 1] {
            let cut = &whole[..len];
            let error = all(Unpacked::new(cut).unwrap()).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (ErrorKind::UnexpectedEof, "the packed data is cut off")
            );
            let mut stream = Unpacked::new(cut).unwrap().ending_where_cut();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            assert!(stream.is_cut() && text.starts_with(&got), "{len}");
            let mut stream = Unpacked::new(cut).unwrap();
            let start = stream.peek(100_000).unwrap().to_vec();
            assert!(text.starts_with(&start), "{len}");
            assert!(all(stream).is_err(), "what was looked at does not hide the end");
        }
    }
    assert!(all(Unpacked::new(&GZIP_MAGIC[..1]).unwrap()).is_err());
}

/// A kilobyte that unpacks to more than a gigabyte.
#[test]
fn a_bomb_is_refused() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..1100 {
        encoder.write_all(&zeros).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1 << 19, "{}", bomb.len());
    let mut stream = Unpacked::new(&bomb[..]).unwrap();
    let error = io::copy(&mut stream, &mut io::sink()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    assert!(error.to_string().contains("of packed data unpack to more than 1.0"), "{error}");
}
