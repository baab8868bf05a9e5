//! Captures that are read as workloads.

use tempfile::TempDir;
use vcr_trace::{AnswerEnd, Format, RowProblem, Sessions, Strictness, Trace, TraceError, TraceOptions};

const META: &str = r#"{"kind":"meta","format":"vcr.capture","version":1,"block_size_tokens":4}"#;

fn request(prompt_tokens: u32, rest: &str) -> String {
    format!(
        "{{\"kind\":\"request\",\"prompt_tokens\":{prompt_tokens},\"output_tokens\":2,\"finish_reason\":\"stop\"{rest}}}"
    )
}

fn read_with(lines: &[String], options: &TraceOptions) -> Result<Trace, TraceError> {
    let text = format!("{META}\n{}\n", lines.join("\n"));
    Trace::read(text.as_bytes(), "t", Format::Capture, options)
}

fn read(lines: &[String]) -> Trace {
    read_with(lines, &TraceOptions::default()).expect("a workload")
}

fn ids(trace: &Trace) -> Vec<Vec<u32>> {
    trace.requests.iter().map(|request| trace.hash_ids(request).to_vec()).collect()
}

#[test]
fn prompts_share_what_their_hashes_say() {
    let trace = read(&[
        request(8, r#","arrival_ns":1,"block_hashes":[11,12]"#),
        request(10, r#","arrival_ns":2,"block_hashes":[11,13],"prompt_hash":99"#),
        request(10, r#","arrival_ns":3,"block_hashes":[11,13],"prompt_hash":99"#),
        request(10, r#","arrival_ns":4,"block_hashes":[11,13]"#),
        request(10, r#","arrival_ns":5,"block_hashes":[11,13]"#),
        request(3, r#","arrival_ns":6,"prompt_hash":98"#),
        request(3, r#","arrival_ns":7,"prompt_hash":98"#),
        request(9, r#","arrival_ns":8"#),
    ]);
    assert_eq!(trace.block_size_tokens, 4);
    let expected: [&[u32]; 8] = [&[0, 1], &[0, 2, 3], &[0, 2, 3], &[0, 2, 4], &[0, 2, 5], &[6], &[6], &[]];
    assert_eq!(ids(&trace), expected);
    assert_eq!(trace.distinct_hash_ids, 7);
}

#[test]
fn multimodal_items_keep_their_places() {
    let item = r#"{"hash":"cat","offset":3,"tokens":4,"modality":"image","embeds":[[0,1],[2,4]]}"#;
    let trace = read(&[
        request(8, &format!(r#","arrival_ns":2,"mm_items":[{item},{{"hash":"dog","offset":7,"tokens":1}}]"#)),
        request(8, r#","arrival_ns":1,"mm_hashes":["cat"]"#),
    ]);
    assert!(trace.items(&trace.requests[0]).is_empty(), "places are not known");
    let [cat, dog] = trace.items(&trace.requests[1]) else { panic!("two items") };
    assert_eq!((cat.hash.as_str(), cat.offset, cat.tokens, cat.modality.as_deref()), ("cat", 3, 4, Some("image")));
    assert_eq!(cat.embeds, Some(vec![[0, 1], [2, 4]]));
    assert_eq!((dog.hash.as_str(), dog.offset, dog.tokens, &dog.modality, &dog.embeds), ("dog", 7, 1, &None, &None));
    assert_ne!(cat.identity(), dog.identity());
}

#[test]
fn requests_come_in_order_of_arrival_from_0() {
    let trace = read(&[
        request(1, r#","arrival_ns":500,"id":"late""#),
        request(1, r#","arrival_ns":200,"id":"early","external_id":"mine","priority":-3"#),
        request(1, r#","arrival_ns":500,"id":"last","output_token_ids":[7,8]"#),
    ]);
    let names: Vec<_> = trace.requests.iter().map(|request| request.request_id.as_deref()).collect();
    assert_eq!(names, [Some("mine"), Some("late"), Some("last")]);
    let arrivals: Vec<_> = trace.requests.iter().map(|request| request.arrival_ns).collect();
    assert_eq!(arrivals, [Some(0), Some(300), Some(300)]);
    assert_eq!((trace.requests[0].priority, trace.requests[0].line), (-3, 3));
    assert_eq!(trace.output_token_ids(&trace.requests[2]), [7, 8]);
    assert_eq!(trace.sessions, 3);
}

/// Returns (session, turn, delay, arrival) of each request.
fn turns(trace: &Trace) -> Vec<(u32, u32, u64, Option<u64>)> {
    let turn =
        |request: &vcr_trace::TraceRequest| (request.session, request.turn, request.delay_ns, request.arrival_ns);
    trace.requests.iter().map(turn).collect()
}

#[test]
fn named_sessions_wait_for_the_turn_before() {
    let trace = read(&[
        request(1, r#","arrival_ns":100,"end_ns":50,"session":"s""#),
        request(1, r#","arrival_ns":170,"ttft_ns":10,"gap_ns":[20],"session":"s""#),
        request(1, r#","arrival_ns":180,"end_ns":7,"session":"s""#),
        request(1, r#","arrival_ns":105,"session":"t""#),
        request(1, r#","arrival_ns":210,"session":"s""#),
        request(1, r#","arrival_ns":990,"session":"t""#),
    ]);
    // The request at 180 arrived before the end of the request at 170, and the end of the first request of `t` is
    // unknown. Such requests keep their own arrivals.
    let expected = [
        (0, 0, 0, Some(0)),
        (1, 0, 0, Some(5)),
        (0, 1, 20, None),
        (2, 0, 0, Some(80)),
        (0, 2, 10, None),
        (3, 0, 0, Some(890)),
    ];
    assert_eq!(turns(&trace), expected);
}

#[test]
fn without_arrivals_sessions_keep_the_order_of_their_turns() {
    let lines = [
        request(1, r#","arrival_ns":100,"session":"s""#),
        request(1, r#","arrival_ns":900,"session":"s""#),
        request(1, r#","arrival_ns":950,"session":"s","think_ns":7"#),
    ];
    let options = TraceOptions { first_timestamp_required: false, ..TraceOptions::default() };
    let trace = read_with(&lines, &options).expect("a workload");
    // The duration of the first request is unknown, so the 800 contain more than think time.
    assert_eq!(turns(&trace), [(0, 0, 0, Some(0)), (0, 1, 0, None), (0, 2, 7, None)]);
}

/// Prompts that extend each other, without sessions.
fn extending() -> [String; 7] {
    [
        request(4, r#","arrival_ns":0,"end_ns":10,"block_hashes":[1]"#),
        request(9, r#","arrival_ns":15,"end_ns":10,"block_hashes":[1,2]"#),
        request(12, r#","arrival_ns":40,"end_ns":10,"block_hashes":[1,2,3]"#),
        // The prefix was already continued by another request.
        request(12, r#","arrival_ns":50,"end_ns":10,"block_hashes":[1,2,4]"#),
        // Equal chains are no proper prefixes of each other.
        request(12, r#","arrival_ns":60,"end_ns":10,"block_hashes":[1,2,4]"#),
        request(16, r#","arrival_ns":80,"end_ns":10,"block_hashes":[1,2,4,5]"#),
        // The request with this prefix had not ended yet.
        request(20, r#","arrival_ns":85,"end_ns":10,"block_hashes":[1,2,4,5,6]"#),
    ]
}

#[test]
fn requests_keep_their_arrivals_unless_sessions_are_asked_for_by_prefix() {
    let options = |sessions| TraceOptions { sessions, ..TraceOptions::default() };
    for sessions in [Sessions::Recorded, Sessions::None] {
        let trace = read_with(&extending(), &options(sessions)).expect("a workload");
        let arrivals: Vec<_> = trace.requests.iter().map(|request| request.arrival_ns).collect();
        assert_eq!(arrivals, [0, 15, 40, 50, 60, 80, 85].map(Some), "{sessions:?}");
    }
    let trace = read_with(&extending(), &options(Sessions::ByPrefix)).expect("a workload");
    let expected = [
        (0, 0, 0, Some(0)),
        (0, 1, 5, None),
        (0, 2, 15, None),
        (1, 0, 0, Some(50)),
        (2, 0, 0, Some(60)),
        (2, 1, 10, None),
        (3, 0, 0, Some(85)),
    ];
    assert_eq!(turns(&trace), expected);
}

#[test]
fn no_session_is_followed_where_none_is_wanted() {
    let lines = [
        request(1, r#","arrival_ns":100,"end_ns":50,"session":"s""#),
        request(1, r#","arrival_ns":170,"end_ns":50,"session":"s""#),
    ];
    let options = TraceOptions { sessions: Sessions::None, ..TraceOptions::default() };
    let trace = read_with(&lines, &options).expect("a workload");
    assert_eq!(turns(&trace), [(0, 0, 0, Some(0)), (1, 0, 0, Some(70))]);
}

#[test]
fn what_ended_without_a_reason_is_whole() {
    let line = |rest: &str| {
        format!(
            r#"{{"kind":"request","prompt_tokens":1,"output_tokens":2,"arrival_ns":1,"ttft_ns":3,"gap_ns":[4]{rest}}}"#
        )
    };
    let lines = [
        line(r#","end_ns":7"#),
        line(r#","end_ns":7,"finish_reason":"abort""#),
        line(r#","end_ns":7,"error":"lost""#),
        line(r#","end_ns":7,"finish_reason":"error""#),
        line(""),
    ];
    let options = TraceOptions { answer_times: true, ..TraceOptions::default() };
    let trace = read_with(&lines, &options).expect("a workload");
    let ends: Vec<_> = trace.answer_times.iter().map(|times| times.expect("times").end).collect();
    let expected = [AnswerEnd::Whole, AnswerEnd::Aborted, AnswerEnd::Failed, AnswerEnd::Failed, AnswerEnd::Aborted];
    assert_eq!(ends, expected);
}

#[test]
fn unknown_arrivals_keep_the_order_of_the_file() {
    let lines =
        [request(1, r#","arrival_ns":9,"id":"a""#), request(1, r#","id":"b""#), request(1, r#","arrival_ns":3"#)];
    let error = read_with(&lines, &TraceOptions::default()).expect_err("an arrival is missing");
    let is_right = matches!(
        &error,
        TraceError::Row { line: 3, field: Some("arrival_ns"), problem: RowProblem::MissingFirstTimestamp, .. }
    );
    assert!(is_right, "{error}");
    let options = TraceOptions { first_timestamp_required: false, ..TraceOptions::default() };
    let trace = read_with(&lines, &options).expect("a workload");
    let arrivals: Vec<_> = trace.requests.iter().map(|request| request.arrival_ns).collect();
    assert_eq!(arrivals, [Some(6), None, Some(0)]);
}

#[test]
fn captures_and_traces_of_vllm_vcr_are_recognised_by_their_first_line() {
    let folder = TempDir::new().expect("a folder");
    let capture = format!("{META}\n{}\n", request(1, r#","arrival_ns":1"#));
    let meta = r#"{"meta": {"model": "m", "block_size": 16}}"#;
    let theirs = r#"{"prompt_tokens": 20, "output_tokens": 1, "ttft_ms": 1.5, "arrival_ms": 0, "block_hashes": [5]}"#;
    for (name, text, block_size_tokens) in [
        ("own.jsonl", capture.clone(), 4),
        ("own.txt", capture.clone(), 4),
        ("theirs.jsonl", format!("{meta}\n{theirs}\n"), 16),
        ("bare.jsonl", format!("{theirs}\n"), 512),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        let options = TraceOptions {
            strictness: if name.starts_with("bare") { Strictness::Lenient } else { Strictness::Standard },
            ..TraceOptions::default()
        };
        let trace = Trace::open(&path, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((trace.requests.len(), trace.block_size_tokens), (1, block_size_tokens), "{name}");
    }
    let nested = folder.path().join("nested");
    std::fs::create_dir(&nested).expect("writable");
    std::fs::write(nested.join("c.jsonl"), &capture).expect("writable");
    let trace = Trace::open(&nested, &TraceOptions::default()).expect("a folder that holds one");
    assert!(trace.warnings[0].to_string().contains("breaks off without an `end` line"), "{:?}", trace.warnings);
}

#[test]
fn lenient_reading_skips_lines_and_says_so() {
    let lines = ["{}".to_owned(), request(1, r#","arrival_ns":1"#)];
    assert!(matches!(read_with(&lines, &TraceOptions::default()), Err(TraceError::Capture(_))));
    let trace = read_with(&lines, &TraceOptions { strictness: Strictness::Lenient, ..TraceOptions::default() })
        .expect("the rest");
    assert_eq!(trace.requests.len(), 1);
    assert_eq!((trace.warnings[0].first_line, trace.warnings[0].rows), (2, 1));
}

#[test]
fn the_first_requests_are_a_trace_of_their_own() {
    let lines = [
        request(8, r#","arrival_ns":1,"end_ns":50,"session":"a""#),
        request(9, r#","arrival_ns":2,"session":"b""#),
        request(10, r#","arrival_ns":3000,"session":"a""#),
        request(11, r#","arrival_ns":4,"session":"c""#),
    ];
    let whole = read(&lines);
    assert_eq!((whole.sessions, whole.requests[0].next_turn), (3, Some(3)), "in the order of arrival");
    let cut = whole.clone().first(2);
    assert_eq!(cut.requests.iter().map(|request| request.input_tokens).collect::<Vec<_>>(), [8, 9]);
    assert_eq!((cut.sessions, cut.requests[0].next_turn, cut.session_id(1)), (2, None, Some("b")));
    assert_eq!(cut.session_id(2), None);
    assert_eq!(whole.clone().first(9), whole, "there are no more");
}
