use std::io::Write;
use std::num::NonZeroU32;

use flate2::{Compression, write::GzEncoder};
use tempfile::TempDir;

use crate::{Dependency, Format, Strictness, Trace, TraceOptions, Trigger, WarningKind, read_files};

fn check(rows: &[String]) -> Result<Trace, String> {
    let text = rows.join("\n");
    Trace::read(text.as_bytes(), "t.jsonl", Format::Dynamo, &TraceOptions::default()).map_err(|e| e.to_string())
}

/// A request whose prompt has two blocks, and which takes 10 ms.
fn request(id: &str, start_ms: u64, session: Option<(&str, Option<&str>)>) -> String {
    let context = match session {
        None => String::new(),
        Some((session, None)) => format!("\"agent_context\":{{\"session_id\":\"{session}\"}},"),
        Some((session, Some(parent))) => {
            format!("\"agent_context\":{{\"session_id\":\"{session}\",\"parent_session_id\":\"{parent}\"}},")
        }
    };
    format!(
        "{{\"schema\":\"dynamo.request.trace.v1\",\"event_type\":\"request_end\",\"event_time_unix_ms\":{},{context}\
         \"request\":{{\"request_id\":\"{id}\",\"output_tokens\":2,\"request_received_ms\":{start_ms},\
         \"total_time_ms\":10,\"replay\":{{\"trace_block_size\":4,\"input_length\":7,\
         \"input_sequence_hashes\":[401,{start_ms}]}}}}}}",
        start_ms + 10
    )
}

fn tool(session: &str, source: &str, consumer: &str, child: &str) -> String {
    format!(
        "{{\"schema\":\"dynamo.request.trace.v1\",\"event_type\":\"tool_end\",\"event_time_unix_ms\":115,\
         \"agent_context\":{{\"session_id\":\"{session}\"}},\"tool\":{{\"tool_call_id\":\"t\",\"claude\":\
         {{\"source_request_id\":\"{source}\",\"consumer_request_id\":\"{consumer}\",\"child_session_id\":\"{child}\",\
         \"execution_mode\":\"blocking\"}}}}}}"
    )
}

fn wait(request: u32, trigger: Trigger, delay_ms: u64) -> Dependency {
    Dependency { request, trigger, delay_ns: delay_ms * 1_000_000 }
}

#[test]
fn requests_without_agents_arrive_in_order_of_time() {
    let payload = "{\"event_type\":\"request_payload\",\"request_id\":\"a\"}".to_owned();
    let trace = check(&[payload, request("late", 1020, None), request("early", 1000, None)]).unwrap();
    let names: Vec<_> = trace.requests.iter().map(|r| (r.request_id.as_deref(), r.arrival_ns, r.line)).collect();
    assert_eq!(names, [(Some("early"), Some(0), 3), (Some("late"), Some(20_000_000), 2)]);
    assert_eq!((trace.block_size_tokens, trace.requests[0].input_tokens, trace.sessions), (4, 7, 2));
    let ids: Vec<_> = trace.requests.iter().map(|request| trace.hash_ids(request).to_vec()).collect();
    assert_eq!(ids, [[0, 1], [0, 2]]);
    assert!(trace.dependencies.is_empty() && trace.warnings.is_empty());
}

#[test]
fn tools_link_parents_and_children() {
    let rows = [
        request("source", 100, Some(("parent", None))),
        tool("parent", "source", "consumer", "child"),
        request("first", 120, Some(("child", Some("parent")))),
        request("last", 150, Some(("child", Some("parent")))),
        request("between", 165, Some(("parent", None))),
        request("consumer", 200, Some(("parent", None))),
    ];
    let trace = check(&rows).unwrap();
    let waits = |index: usize| trace.dependencies(&trace.requests[index]);
    assert_eq!(waits(0), []);
    assert_eq!(waits(1), [wait(0, Trigger::Dispatch, 20)]);
    assert_eq!(waits(2), [wait(1, Trigger::Completion, 20)]);
    assert_eq!(waits(3), [wait(0, Trigger::Completion, 55)]);
    assert_eq!(waits(4), [wait(3, Trigger::Completion, 25), wait(2, Trigger::Completion, 40)]);
    assert_eq!(trace.requests[0].arrival_ns, Some(0));
    // Without the tool call, times decide: the next request got the child's result.
    let untold: Vec<String> = rows.iter().filter(|row| !row.contains("tool_end")).cloned().collect();
    let trace = check(&untold).unwrap();
    let waits = |index: usize| trace.dependencies(&trace.requests[index]);
    assert_eq!(waits(1), [wait(0, Trigger::Dispatch, 20)]);
    assert_eq!(waits(3), [wait(0, Trigger::Completion, 55), wait(2, Trigger::Completion, 5)]);
    assert_eq!(waits(4), [wait(3, Trigger::Completion, 25)]);
}

#[test]
fn shards_are_merged_and_errors_name_theirs() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("b.jsonl"), request("late", 1020, None)).unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(request("early", 1000, None).as_bytes()).unwrap();
    std::fs::write(path("a.jsonl.gz"), packed.finish().unwrap()).unwrap();
    let trace = read_files(&[path("b.jsonl"), path("a.jsonl.gz")], &TraceOptions::default()).unwrap();
    assert_eq!(trace.requests[0].request_id.as_deref(), Some("early"));
    // A request with the same name in another file.
    std::fs::write(path("c.jsonl"), format!("\n{}", request("late", 1050, None))).unwrap();
    let error = read_files(&[path("b.jsonl"), path("c.jsonl")], &TraceOptions::default()).unwrap_err().to_string();
    assert!(error.contains("c.jsonl`, line 2, field `request.request_id`: duplicate request"), "{error}");
    let mooncake = TraceOptions { format: Some(Format::Mooncake), ..TraceOptions::default() };
    let error = read_files(&[path("b.jsonl"), path("c.jsonl")], &mooncake).unwrap_err().to_string();
    assert!(error.contains("2 trace files, but a mooncake trace is one file"), "{error}");
    let none: [&str; 0] = [];
    assert!(read_files(&none, &TraceOptions::default()).is_err());
}

#[test]
fn wrapped_and_unknown_events() {
    let wrapped = format!("{{\"timestamp\":1,\"event\":{}}}", request("a", 5, None));
    let unknown = "{\"event_type\":\"request_begin\"}".to_owned();
    let trace = check(&[wrapped.clone(), unknown.clone(), unknown.clone()]).unwrap();
    let warning = &trace.warnings[0];
    assert_eq!((&warning.kind, warning.rows), (&WarningKind::UnknownEvent("request_begin".into()), 2));
    let strict = TraceOptions { strictness: Strictness::Strict, ..TraceOptions::default() };
    let rows = format!("{wrapped}\n{unknown}");
    let error = Trace::read(rows.as_bytes(), "t", Format::Dynamo, &strict).unwrap_err().to_string();
    assert!(error.contains("line 2, field `event_type`: events of type `request_begin` are not replayed"), "{error}");
}

#[test]
fn errors_name_line_and_field() {
    let parent = || request("p", 0, Some(("parent", None)));
    let child = || request("c", 20, Some(("child", Some("parent"))));
    let good = request("x", 0, None);
    let cases: Vec<(Vec<String>, &str)> = vec![
        (
            vec![good.replace("\"total_time_ms\":10", "\"total_time_ms\":-1")],
            "field `request.total_time_ms`: invalid duration -1 ms",
        ),
        (vec![good.replace("v1", "v2")], "field `schema`: `dynamo.request.trace.v2` is another schema"),
        (vec![good.replace("[401,0]", "[401]")], "field `request.replay.input_sequence_hashes`: 1 hashes for 7 tokens"),
        (
            vec![good.replace(":7", ":0").replace("[401,0]", "[]")],
            "field `request.replay.input_length`: the prompt has",
        ),
        (vec![good.replace("\"output_tokens\":2,", "")], "field `request.output_tokens`: the field is missing"),
        (vec![good.replace("[401,0]", "[401,-1]")], "field `request.replay.input_sequence_hashes[1]`: invalid value"),
        (vec![good.replace("\"replay\"", "\"other\"")], "field `request.replay`: the field is missing"),
        (vec!["[1]".to_owned()], "line 1: "),
        (vec!["{}".to_owned()], "field `event_type`: the field is missing"),
        (
            vec![good.clone(), request("y", 1, None).replace("size\":4", "size\":8").replace("[401,1]", "[401]")],
            "line 2, field `request.replay.trace_block_size`: the trace has blocks of 8 tokens, but 4",
        ),
        (vec![good.clone(), parent()], "field `agent_context`: the field is missing, but other requests have it"),
        (
            vec![parent(), tool("parent", "p", "nobody", "child"), child()],
            "line 2, field `tool.claude.consumer_request_id`: unknown request `nobody`",
        ),
        (
            vec![parent(), tool("parent", "c", "p", "child"), child()],
            "line 2, field `tool.claude.source_request_id`: request `c` is not of session `parent`",
        ),
        (
            vec![parent(), tool("parent", "p", "p", "child"), child()],
            "requests wait for each other in a circle: p -> c -> p",
        ),
        (
            vec![parent(), child(), request("d", 40, Some(("child", Some("other"))))],
            "line 3, field `agent_context.parent_session_id`: session `child` has two parents",
        ),
        (vec!["{\"event_type\":\"request_payload\"}".to_owned()], "holds no request"),
    ];
    for (rows, expected) in cases {
        let message = check(&rows).unwrap_err();
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
    let options = TraceOptions { block_size_tokens: NonZeroU32::new(16), ..TraceOptions::default() };
    let message = Trace::read(good.as_bytes(), "t", Format::Dynamo, &options).unwrap_err().to_string();
    assert!(message.contains("the trace has blocks of 4 tokens, but 16 were expected"), "{message}");
}
