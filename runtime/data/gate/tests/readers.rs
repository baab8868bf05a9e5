//! No input makes a reader panic, and every accepted line is a valid observation.

use std::ops::ControlFlow;

use proptest::prelude::*;
use vcr_gate::{Format, GateError, MirrorOptions, ObservationReader, Place, Side};

const SAMPLES: [(Format, &str); 8] = [
    (
        Format::Observations,
        r#"{"observation":1,"request_id":"a","ok":true,"latency_ns":9,"event_ns":[1,2,5],"event_tokens":[1,1,2],"vector":[0.5],"text":"x","kv_usage":0.5}"#,
    ),
    (
        Format::Requests,
        r#"{"of":"a","id":0,"workload":"w","session":1,"turn":0,"status":"completed","max_tokens":9,"arrival_ms":0,"end_ms":4,"ttft_ms":1,"e2e_ms":4,"output_tokens":9}"#,
    ),
    (
        Format::Sse,
        r#"{"request_id":"a","chunks":[{"at_ms":1,"data":{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{"logprob":-1}]}}]}},{"at_ms":2,"data":"[DONE]"}]}"#,
    ),
    (Format::Sse, "HTTP/1.1 200 OK\nx-request-id: a\n0.5 data: {\"choices\": [{\"text\": \"x\"}]}\n0.6 data: [DONE]\n"),
    (Format::Log, "Generated response a: output: 'x\\n', output_token_ids: [1], finish_reason: stop\n"),
    (
        Format::Responses,
        r#"{"text":"x","output_ids":[1],"meta_info":{"id":"a","e2e_latency":0.5,"output_token_logprobs":[[-0.5,1]]}}"#,
    ),
    (
        Format::Aiperf,
        r#"{"metadata":{"session_num":1,"request_start_ns":1,"request_end_ns":2},"metrics":{"request_latency":{"value":1,"unit":"ms"},"output_sequence_length":{"value":3}},"error":null}"#,
    ),
    (Format::Requests, "request_id,latency_ms,vector,event_ms,ok\na,1.5,0.5 1,0.1 0.2,true\n"),
];

/// Reads bytes. Writes each resulting observation and reads it again.
fn read(format: Format, bytes: &[u8]) -> Result<u64, GateError> {
    let options = MirrorOptions { lengths: true, ..MirrorOptions::default() };
    let mut side = Side::new();
    side.begin("file");
    let mirrored = vcr_gate::mirror::read_stream(bytes, "file", format, None, &options, &mut |observation, place| {
        assert!(place != Place::File, "an observation has a place");
        let mut written = Vec::new();
        observation.write(&mut written).expect("a vector takes everything");
        let mut reader = ObservationReader::new(&written[..], "written");
        assert!(reader.next_observation().expect("what was written can be read").is_some());
        side.add(observation, place)?;
        Ok(ControlFlow::Continue(()))
    });
    side.finish()?;
    mirrored.map(|mirrored| mirrored.observations)
}

#[test]
fn samples_are_read() {
    for (format, text) in SAMPLES {
        let read = read(format, text.as_bytes()).unwrap_or_else(|error| panic!("{format}: {error}"));
        assert_eq!(read, 1, "{format}");
    }
}

#[test]
fn errors_name_the_file() {
    for (format, _) in SAMPLES {
        for text in ["", "{", "[]", "{}", "\u{feff}", "null", "{\"request_id\":\"a\"}"] {
            let error = read(format, text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains("`file`"), "{format}: {text}: {error}");
        }
    }
}

fn patch() -> impl Strategy<Value = String> {
    let words =
        ["-1", "1e400", "null", "\"\"", "[]", "{}", "9", "18446744073709551616", "0.5", "true", "\"x", ",", "\n"];
    prop_oneof![prop::sample::select(words.to_vec()).prop_map(str::to_owned), "[ -~]{0,4}",]
}

proptest! {
    #[test]
    fn broken_samples_panic_nobody(
        which in 0..SAMPLES.len(),
        patches in prop::collection::vec((0.0..1.0_f64, 0..8_usize, patch()), 0..4),
    ) {
        let (format, text) = SAMPLES[which];
        let mut bytes = text.as_bytes().to_vec();
        for (at, len, patch) in patches {
            let start = (at * bytes.len() as f64) as usize;
            let end = (start + len).min(bytes.len());
            bytes.splice(start..end, patch.into_bytes());
        }
        if let Err(error) = read(format, &bytes) {
            prop_assert!(error.to_string().contains("`file`"), "{}", error);
        }
    }
}
