//! Reads the size of media from the first bytes of their files.

/// The width and height of an image in pixels.
pub(super) fn image_pixels(file: &[u8]) -> Option<(usize, usize)> {
    imagesize::blob_size(file).ok().map(|size| (size.width, size.height))
}

/// Assumed bytes per second of audio: 128 kbit/s.
const BYTES_PER_S: f64 = 16_000.0;

/// The duration of audio in seconds. `start` contains the first bytes of a file with `file_bytes` bytes.
pub(super) fn audio_seconds(start: &[u8], file_bytes: usize) -> f64 {
    let (header, rate) = wav_rate(start).unwrap_or((0, BYTES_PER_S));
    file_bytes.saturating_sub(header) as f64 / rate
}

/// The number of bytes before the samples of a WAV file, and its bytes per second.
fn wav_rate(start: &[u8]) -> Option<(usize, f64)> {
    if start.get(..4)? != b"RIFF" || start.get(8..12)? != b"WAVE" {
        return None;
    }
    let number = |at: usize| Some(u32::from_le_bytes(start.get(at..at + 4)?.try_into().ok()?));
    let (mut at, mut rate) = (12, None);
    loop {
        let (name, bytes) = (start.get(at..at + 4)?, number(at + 4)? as usize);
        match name {
            b"fmt " => rate = number(at + 16).filter(|rate| *rate > 0),
            b"data" => return Some((at + 8, f64::from(rate?))),
            _ => {}
        }
        // Chunks are padded to an even length.
        at = at.checked_add(8)?.checked_add(bytes)?.checked_add(bytes % 2)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(rate: u32) -> Vec<u8> {
        let mut file = b"RIFF....WAVELIST\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00\x01\x00\x01\x00".to_vec();
        file.extend(8000u32.to_le_bytes());
        file.extend(rate.to_le_bytes());
        file.extend(b"\x02\x00\x10\x00data\xff\xff\xff\xff");
        file
    }

    #[test]
    fn audio_lasts_as_long_as_its_samples() {
        let start = wav(16_000);
        assert_eq!(audio_seconds(&start, start.len() + 40_000), 2.5);
        assert_eq!(audio_seconds(b"ID3 and so on", 32_000), 2.0);
        for broken in [wav(0), start[..20].to_vec(), b"RIFF....WAVE".to_vec(), Vec::new()] {
            assert_eq!(audio_seconds(&broken, 32_000), 2.0, "{broken:?}");
        }
    }

    #[test]
    fn images_say_their_size() {
        let mut png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR".to_vec();
        png.extend([0, 0, 2, 0, 0, 0, 1, 0]);
        png.extend([8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(image_pixels(&png), Some((512, 256)));
        assert_eq!(image_pixels(b"no image"), None);
    }
}
