use crate::{Dependency, Format, HashIdScope, Strictness, Trace, TraceOptions, Trigger, WarningKind, write_mooncake};

fn check_with(rows: &str, options: &TraceOptions) -> Result<Trace, String> {
    Trace::read(rows.as_bytes(), "t.jsonl", Format::AgenticMooncake, options).map_err(|error| error.to_string())
}

fn check(rows: &str) -> Result<Trace, String> {
    check_with(rows, &TraceOptions::default())
}

const HEADER: &str =
    r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":4,"hash_id_scope":"local","source":{}}"#;

fn row(id: &str, rest: &str) -> String {
    format!("{{\"request_id\":\"{id}\",\"output_length\":2,\"hash_ids\":[1]{rest}}}\n")
}

fn wait(request: u32, trigger: Trigger, delay_ms: u64) -> Dependency {
    Dependency { request, trigger, delay_ns: delay_ms * 1_000_000 }
}

#[test]
fn rows_of_version_1_wait_for_completions() {
    let rows =
        row("join", ",\"wait_for\":[\"a\",\"b\"],\"delay\":10,\"tool_wait_ms\":5,\"timestamp\":1,\"session_id\":\"s\"")
            + &row("a", ",\"timestamp\":100,\"session_id\":\"s\",\"branches\":[\"b\"],\"prefix_reset\":true")
            + &row("b", ",\"timestamp\":130,\"request_kind\":\"agent\",\"tool_events\":[{\"x\":1}]");
    let trace = check(&rows).unwrap();
    let [join, a, b] = &trace.requests[..] else { panic!("three rows") };
    let after = |request| wait(request, Trigger::Completion, 15);
    assert_eq!(trace.dependencies(join), [after(1), after(2)]);
    assert_eq!((join.arrival_ns, a.arrival_ns, b.arrival_ns), (None, Some(0), Some(30_000_000)));
    assert_eq!((join.turn, a.turn, b.session), (0, 1, 1));
    assert!(trace.has_free_turns && trace.dependencies(b).is_empty() && trace.warnings.is_empty());
    assert!(join.next_turn.is_none(), "a session alone holds nothing back");
    let error = write_mooncake(&trace, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn version_2_has_triggers_and_a_block_size_of_its_own() {
    let rows = format!("{HEADER}\n")
        + &row("root", ",\"play_id\":\"p\",\"not_before_ms\":7,\"model\":\"m\",\"dependencies\":[]")
        + &row(
            "child",
            ",\"play_id\":\"p\",\"not_before_ms\":0,\"dependencies\":\
             [{\"request_id\":\"root\",\"trigger\":\"dispatch\",\"delay_ms\":5,\"relation\":\"spawn\"}]",
        )
        + &row(
            "late",
            ",\"play_id\":\"p\",\"not_before_ms\":20,\"dependencies\":\
             [{\"request_id\":\"child\",\"trigger\":\"completion\"},{\"request_id\":\"root\",\"trigger\":\"completion\",\"delay_ms\":1}]",
        );
    let trace = check(&rows).unwrap();
    assert_eq!((trace.block_size_tokens, trace.requests[0].input_tokens, trace.requests[0].line), (4, 4, 2));
    assert_eq!(trace.dependencies(&trace.requests[1]), [wait(0, Trigger::Dispatch, 5)]);
    let [first, second] = [wait(1, Trigger::Completion, 0), wait(0, Trigger::Completion, 1)];
    assert_eq!(trace.dependencies(&trace.requests[2]), [first, second]);
    let arrivals: Vec<_> = trace.requests.iter().map(|request| request.arrival_ns).collect();
    assert_eq!(arrivals, [Some(0), Some(0), Some(13_000_000)]);
}

#[test]
fn local_ids_are_shared_inside_a_play() {
    let in_play = |id: &str, play: &str, session: &str| {
        row(id, &format!(",\"play_id\":\"{play}\",\"session_id\":\"{session}\",\"not_before_ms\":0"))
    };
    let rows = format!("{HEADER}\n") + &in_play("a", "p", "x") + &in_play("b", "p", "y") + &in_play("c", "q", "z");
    let ids = |scope| {
        let options = TraceOptions { hash_id_scope: scope, ..TraceOptions::default() };
        let trace = check_with(&rows, &options).unwrap();
        trace.requests.iter().flat_map(|request| trace.hash_ids(request).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(ids(None), [0, 0, 1]);
    assert_eq!(ids(Some(HashIdScope::Session)), [0, 1, 2]);
    assert_eq!(ids(Some(HashIdScope::Trace)), [0, 0, 0]);
}

#[test]
fn errors_name_line_and_field() {
    let root = row("a", ",\"timestamp\":0");
    let cases = [
        (root.replace("\"request_id\":\"a\",", ""), "line 2, field `request_id`: the field is missing"),
        (root.clone(), "line 2, field `request_id`: duplicate request `a`"),
        (row("b", ",\"wait_for\":[\"x\"]"), "line 2, field `wait_for`: unknown request `x`"),
        (row("b", ",\"timestamp\":0,\"branches\":[\"x\"]"), "line 2, field `branches`: unknown request"),
        (
            row("b", ",\"wait_for\":[\"b\"]"),
            "line 2, field `wait_for`: requests wait for each other in a circle: b -> b",
        ),
        (
            row("b", ",\"wait_for\":[\"a\",\"d\"]")
                + &row("c", ",\"wait_for\":[\"b\"]")
                + &row("d", ",\"wait_for\":[\"c\"]"),
            "line 2, field `wait_for`: requests wait for each other in a circle: b -> d -> c -> b",
        ),
        (row("b", ""), "line 2, field `timestamp`: a first turn needs a timestamp"),
        (row("b", ",\"timestamp\":0,\"delay\":1"), "line 2, field `delay`: a first turn has nothing to wait for"),
        (row("b", ",\"wait_for\":[\"a\"],\"tool_wait_ms\":-1"), "line 2, field `tool_wait_ms`: invalid delay -1 ms"),
        (
            row("b", ",\"dependencies\":[{\"request_id\":\"a\",\"trigger\":\"death\"}]"),
            "line 2, field `dependencies`: unknown variant `death`, expected `dispatch` or `completion`",
        ),
    ];
    for (second, expected) in &cases {
        let message = check(&format!("{root}{second}")).unwrap_err();
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
    for (header, expected) in [
        (HEADER.replace("mooncake\"", "\""), "line 1, field `schema`: `dynamo.agentic_` is another schema"),
        (HEADER.replace(":2", ":3"), "line 1, field `version`: version 3 is not known"),
        (HEADER.replace(":4", ":0"), "line 1: invalid value"),
        (HEADER.replace("\"local\"", "\"here\""), "line 1: unknown variant `here`"),
    ] {
        let message = check(&format!("{header}\n{root}")).unwrap_err();
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
    let options = TraceOptions { block_size_tokens: std::num::NonZeroU32::new(8), ..TraceOptions::default() };
    let message = check_with(&format!("{HEADER}\n{root}"), &options).unwrap_err();
    assert!(message.contains("line 1, field `block_size`: the trace has blocks of 4 tokens, but 8"), "{message}");
    assert!(check(HEADER).unwrap_err().contains("holds no request"));
    assert!(check("").unwrap_err().contains("holds no request"));
}

#[test]
fn unknown_fields_are_counted_and_in_strict_reading_refused() {
    let rows = row("a", ",\"timestamp\":0,\"colour\":1")
        + &row("b", ",\"dependencies\":[{\"request_id\":\"a\",\"trigger\":\"completion\",\"why\":1}]");
    let kinds: Vec<_> = check(&rows).unwrap().warnings.into_iter().map(|warning| warning.kind).collect();
    let unknown = |name: &str| WarningKind::UnknownField(name.into());
    assert_eq!(kinds, [unknown("colour"), unknown("dependencies.why")]);
    let strict = TraceOptions { strictness: Strictness::Strict, ..TraceOptions::default() };
    assert!(check_with(&rows, &strict).unwrap_err().contains("line 1: `colour` is not a field of this format"));
}
