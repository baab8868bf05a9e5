//! No input may panic a reader. The fuzz targets look deeper; this runs on
//! every build.

use proptest::prelude::*;
use vcr_trace::{Trace, TraceFormat, TraceOptions, write_mooncake};

fn read_all(bytes: &[u8]) {
    for format in [TraceFormat::Mooncake, TraceFormat::Azure] {
        for lenient in [false, true] {
            let options = TraceOptions { lenient, first_timestamp_required: !lenient, ..TraceOptions::default() };
            if let Ok(trace) = Trace::read(bytes, "arbitrary", format, &options) {
                assert!(!trace.requests.is_empty());
                write_mooncake(&trace, &mut std::io::sink()).expect("a sink takes all");
            }
        }
    }
}

/// Pieces that get past the first checks far more often than random bytes do.
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
    // There is no library root here to keep failing cases beside.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
    }

    /// Few different bytes, so that commas, quotes, line ends and halves of
    /// characters meet.
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
}
