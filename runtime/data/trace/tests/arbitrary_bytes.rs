//! No input may make a reader panic. The fuzz targets search deeper; this test runs in every build.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use vcr_trace::capture::{CaptureReader, ReadOptions, VllmVcrWriter};
use vcr_trace::{Format, SharedPrefix, Strictness, Trace, TraceOptions, write_mooncake};

fn read_all(bytes: &[u8]) {
    for format in Format::ALL {
        for strictness in [Strictness::Lenient, Strictness::Standard, Strictness::Strict] {
            let options = TraceOptions {
                strictness,
                first_timestamp_required: strictness == Strictness::Standard,
                shared_prefix: SharedPrefix { ratio: 0.5, groups: 2, seed: 1 },
                ..TraceOptions::default()
            };
            let Ok(trace) = Trace::read(bytes, "arbitrary", format, &options) else { continue };
            assert!(!trace.requests.is_empty());
            assert!(strictness != Strictness::Strict || trace.warnings.is_empty());
            for request in &trace.requests {
                assert!(
                    trace.dependencies(request).iter().all(|other| (other.request as usize) < trace.requests.len())
                );
                assert!(trace.hash_ids(request).iter().all(|id| id < trace.distinct_hash_ids));
            }
            // Writing a trace uses every range of every request.
            let written = write_mooncake(&trace, &mut std::io::sink());
            assert_eq!(written.is_ok(), !trace.has_free_turns);
        }
    }
}

/// Every capture that a reader accepts can be written in both formats. A reader must end, also if it continues
/// after errors.
fn read_capture(bytes: &[u8]) {
    for lenient in [false, true] {
        let Ok(mut reader) = CaptureReader::from_reader(bytes, "arbitrary", &ReadOptions { lenient }) else { continue };
        let mut writer = VllmVcrWriter::new(std::io::sink(), reader.meta()).expect("a sink takes all");
        loop {
            match reader.next_line() {
                Ok(None) => break,
                Ok(Some((_, line))) => {
                    serde_json::to_string(&line).expect("a line is JSON");
                    writer.write(&line).expect("a sink takes all");
                }
                Err(error) => assert!(!lenient || error.to_string().contains("damaged"), "{error}"),
            }
        }
        assert!(lenient || reader.summary().skipped_lines == 0);
    }
}

fn arb_almost_captures() -> impl Strategy<Value = String> {
    let start = prop_oneof![
        Just("{\"kind\":\"meta\",\"format\":\"vcr.capture\",\"version\":1,\"block_size_tokens\":4}\n"),
        Just("{\"meta\":{\"block_size\":4}}\n"),
        Just("{\"prompt_tokens\":5,\"output_tokens\":1,\"ttft_ms\":1.5}\n"),
    ];
    let piece = prop_oneof![
        Just("{\"kind\":\"request\",\"prompt_tokens\":5,".to_owned()),
        Just("{\"prompt_tokens\":5,\"ttft_ms\":2,".to_owned()),
        Just("\"output_tokens\":2,\"gap_ns\":[5],".to_owned()),
        Just("\"output_tokens\":2,\"itl_ms\":[0.5],".to_owned()),
        Just("\"block_hashes\":[\"00000000000000ff\"],".to_owned()),
        Just("\"itl_ctx\":{\"num_running\":[1],\"prefill_tokens\":[0]},".to_owned()),
        Just("{\"kind\":\"arrival\",\"id\":\"a\",\"arrival_ns\":1,\"prompt_tokens\":1}\n".to_owned()),
        Just("{\"kind\":\"end\",\"at_ns\":1,\"requests\":0,\"unfinished\":0,\"continues\":true}\n".to_owned()),
        Just("\"id\":\"a\",".to_owned()),
        Just("\"x\":null}\n".to_owned()),
        any::<i64>().prop_map(|x| format!("\"end_ns\":{x},")),
        any::<f64>().prop_map(|x| format!("\"arrival_ms\":{x:e},")),
        "[\\[\\]\\{\\}\",:0-9 \n\\\\]{0,6}",
    ];
    (start, proptest::collection::vec(piece, 0..24)).prop_map(|(start, pieces)| start.to_owned() + &pieces.concat())
}

/// Parts of rows. They pass the first checks far more often than random bytes.
fn arb_almost_rows() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{".to_owned()),
        Just("}\n".to_owned()),
        Just("\"timestamp\":".to_owned()),
        Just("\"session_id\":\"s\",".to_owned()),
        Just("\"output_length\":1,".to_owned()),
        Just("\"hash_ids\":[1,2],".to_owned()),
        Just("\"delay\":1,".to_owned()),
        Just("\"x\":null}\n".to_owned()),
        Just("TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned()),
        Just("2023-11-16 18:17:03.9799600,".to_owned()),
        Just("5,5\n".to_owned()),
        any::<f64>().prop_map(|x| format!("{x:e},")),
        any::<i64>().prop_map(|x| format!("{x},")),
        "[\\[\\]\\{\\}\",:0-9 \n\\\\]{0,6}",
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    // There is no library root next to which failing cases could be stored.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
    }

    /// Uses only a few different bytes, so that commas, quotes, line ends and parts of characters occur together.
    #[test]
    fn structural_bytes_never_panic(
        bytes in proptest::collection::vec(
            proptest::sample::select(b",\"\r\n{}[]:0-\xd2\xbb\xef\xbf".to_vec()), 0..40),
    ) {
        read_all(&bytes);
    }

    #[test]
    fn almost_rows_never_panic(text in arb_almost_rows()) {
        read_all(text.as_bytes());
    }

    #[test]
    fn almost_captures_never_panic(text in arb_almost_captures(), cut in 0..1000usize) {
        read_all(text.as_bytes());
        read_capture(text.as_bytes());
        read_capture(&text.as_bytes()[..cut.min(text.len())]);
    }

    #[test]
    fn damaged_archives_never_panic(text in arb_almost_captures(), place in 0..400usize, byte in any::<u8>()) {
        let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
        gz.write_all(text.as_bytes()).expect("a vector takes all");
        let zst = zstd::encode_all(text.as_bytes(), 1).expect("a vector takes all");
        for mut packed in [gz.finish().expect("a vector takes all"), zst] {
            read_capture(&packed[..place.min(packed.len())]);
            let place = place % packed.len();
            packed[place] = byte;
            read_capture(&packed);
        }
    }
}
