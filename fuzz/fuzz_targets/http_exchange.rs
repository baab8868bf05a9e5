//! No bytes of clients and servers may panic the recorder of HTTP, or the matcher of requests and
//! recordings; the written capture can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_record::http::{Exchange, RedactRules, lines_of};
use vcr_record::playback::http::{Asked, AskedParts, MatchRules};
use vcr_trace::capture::{CaptureLine, CaptureReader, ReadOptions};

const KINDS: [&str; 3] = ["text/event-stream", "application/json", "multipart/form-data; boundary=b"];
const ENCODINGS: [&str; 5] = ["identity", "gzip", "deflate", "zstd", "br"];

fuzz_target!(|bytes: &[u8]| {
    let [first, second, third, rest @ ..] = bytes else { return };
    let (kind, encoding) = (KINDS[usize::from(*first) % 3], ENCODINGS[usize::from(*second) % 5]);
    let (asked, answered) = rest.split_at(usize::from(*third).min(rest.len()));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let secret = String::from_utf8_lossy(&asked[..asked.len().min(20)]).into_owned();
    let exchange = Exchange {
        method: "POST".to_owned(),
        path: "/v1/x".to_owned(),
        query: Some(String::from_utf8_lossy(asked).into_owned()),
        request_headers: vec![pair("authorization", &secret), pair("content-type", kind)],
        request_body: asked.to_vec(),
        status: Some(200),
        headers: vec![pair("content-type", kind), pair("content-encoding", encoding)],
        chunks: answered.chunks(13).zip(1..).map(|(part, at_ns)| (at_ns, part.to_vec())).collect(),
        end_ns: 1 << 40,
        ..Exchange::default()
    };
    let redact = RedactRules { json: vec!["a.*".parse().expect("a path")], ..RedactRules::default() };
    let (http, request) = lines_of(&exchange, &redact, 1 << 16);
    let rules = MatchRules { ignore: vec!["b.c".parse().expect("a path")], redact, ..MatchRules::default() };
    let (query, headers) = (http.query.as_deref(), http.request_headers.as_slice());
    let parts = AskedParts { method: "POST", path: "/v1/x", query, headers, body: &http.request_body.0 };
    drop(Asked::of(parts, &rules));
    let mut text = String::from("{\"kind\":\"meta\",\"format\":\"vcr.capture\",\"version\":1}\n");
    let lines = [Some(CaptureLine::Http(Box::new(http))), request.map(|line| CaptureLine::Request(Box::new(line)))];
    for line in lines.into_iter().flatten() {
        text.push_str(&serde_json::to_string(&line).expect("a line is JSON"));
        text.push('\n');
    }
    let mut reader =
        CaptureReader::from_reader(text.as_bytes(), "written", &ReadOptions::default()).expect("a capture");
    while reader.next_line().expect("a line").is_some() {}
});
