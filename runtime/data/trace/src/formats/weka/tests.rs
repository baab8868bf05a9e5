use super::*;
use crate::{Format, Trigger};

/// A request that starts at `start` and takes `seconds`, with blocks of 4 tokens.
fn call(start: f64, seconds: f64, ids: &[u64]) -> String {
    let tokens = ids.len() * 4;
    format!(r#"{{"type":"s","t":{start},"model":"m","in":{tokens},"out":8,"api_time":{seconds},"hash_ids":{ids:?}}}"#)
}

fn play(id: &str, requests: &[String]) -> String {
    format!(
        r#"{{"id":"{id}","models":["m"],"block_size":4,"hash_id_scope":"local","requests":[{}]}}"#,
        requests.join(",")
    )
}

fn subagent(start: f64, status: &str, requests: &[String]) -> String {
    let requests = requests.join(",");
    format!(
        r#"{{"type":"subagent","t":{start},"agent_id":"a","subagent_type":"x","status":"{status}","requests":[{requests}]}}"#
    )
}

fn read_with(text: &str, options: &TraceOptions) -> Result<Trace, TraceError> {
    Trace::read(text.as_bytes(), "corpus", Format::Weka, options)
}

fn read(text: &str) -> Trace {
    read_with(text, &TraceOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    read_with(text, &TraceOptions::default()).unwrap_err().to_string()
}

/// Dependencies of a request: (request, whether it waits for the end, milliseconds).
fn waits(trace: &Trace, request: usize) -> Vec<(u32, bool, u64)> {
    let dependencies = trace.dependencies(&trace.requests[request]).iter();
    let of = |d: &Dependency| (d.request, d.trigger == Trigger::Completion, d.delay_ns / 1_000_000);
    dependencies.map(of).collect()
}

fn sessions(trace: &Trace) -> Vec<&str> {
    trace.requests.iter().map(|request| trace.session_id(request.session).unwrap()).collect()
}

#[test]
fn a_conversation_is_a_chain_with_the_recorded_pauses() {
    let trace = read(&play("p", &[call(1.0, 2.0, &[1]), call(3.5, 1.0, &[1, 2]), call(6.0, 0.0, &[1, 2, 3])]));
    assert!(trace.has_free_turns);
    assert_eq!(sessions(&trace), ["p", "p", "p"]);
    assert_eq!(waits(&trace, 0), []);
    assert_eq!(waits(&trace, 1), [(0, true, 500)]);
    assert_eq!(waits(&trace, 2), [(1, true, 1500)]);
    let arrivals: Vec<Option<u64>> = trace.requests.iter().map(|request| request.arrival_ns).collect();
    assert_eq!(arrivals, [Some(0), Some(2_500_000_000), Some(5_000_000_000)]);
    assert_eq!(trace.recorded_ns, [Some(2_000_000_000), Some(1_000_000_000), Some(0)]);
    assert_eq!(trace.hash_ids(&trace.requests[2]), [0, 1, 2]);
}

#[test]
fn prompts_that_leave_a_conversation_are_branches_unless_it_ended_there() {
    // Request 1 starts while request 0 runs. Both prompts start with the same block, and request 2 continues
    // request 0.
    let branch = play("p", &[call(0.0, 5.0, &[1, 2]), call(1.0, 1.0, &[1, 9]), call(6.0, 1.0, &[1, 2, 3])]);
    let trace = read(&branch);
    assert_eq!(sessions(&trace), ["p", "p/branch-1", "p"]);
    assert_eq!(waits(&trace, 1), [(0, false, 1000)]);
    // Request 2 waits for its own conversation, and for the branch that had ended.
    assert_eq!(waits(&trace, 2), [(0, true, 1000), (1, true, 0)]);
    // No request extends request 0, so the request with the same beginning continues it.
    let shortened = play("p", &[call(0.0, 1.0, &[1, 2, 3]), call(2.0, 1.0, &[1, 7])]);
    let trace = read(&shortened);
    assert_eq!(sessions(&trace), ["p", "p"]);
    assert_eq!(waits(&trace, 1), [(0, true, 1000)]);
}

#[test]
fn another_model_is_another_conversation() {
    let other = call(2.0, 1.0, &[1, 2, 3]).replace(r#""model":"m""#, r#""model":"n""#);
    let trace = read(&play("p", &[call(0.0, 1.0, &[1, 2]), other]));
    assert_eq!(sessions(&trace), ["p", "p/branch-1"]);
}

#[test]
fn a_preamble_is_of_the_first_conversation() {
    let title = call(0.0, 0.5, &[50]);
    let trace = read(&play("p", &[title, call(0.1, 1.0, &[1]), call(2.0, 1.0, &[1, 2])]));
    assert_eq!(sessions(&trace), ["p", "p", "p"]);
    assert_eq!(waits(&trace, 1), [(0, true, 0)]);
}

#[test]
fn subagents_start_where_they_were_called_and_callers_wait_for_them() {
    let inner = [call(2.0, 1.0, &[1, 40]), call(4.0, 2.0, &[1, 40, 41])];
    let requests = [call(0.0, 1.0, &[1]), subagent(1.5, "completed", &inner), call(7.0, 1.0, &[1, 2])];
    let trace = read(&play("p", &requests));
    assert_eq!(sessions(&trace), ["p", "p/a-1", "p/a-1", "p"]);
    assert_eq!(waits(&trace, 1), [(0, true, 1000)]);
    assert_eq!(waits(&trace, 2), [(1, true, 1000)]);
    assert_eq!(waits(&trace, 3), [(0, true, 6000), (2, true, 1000)]);
    // All agents of a play share blocks.
    assert_eq!(trace.hash_ids(&trace.requests[1]), [0, 1]);
    let launched = play("p", &[requests[0].clone(), subagent(1.5, "async_launched", &inner), requests[2].clone()]);
    assert_eq!(waits(&read(&launched), 3), [(0, true, 6000)]);
}

#[test]
fn nested_times_are_relative_where_one_would_be_before_its_subagent() {
    let requests =
        [call(10.0, 1.0, &[1]), subagent(12.0, "completed", &[call(0.5, 1.0, &[9])]), call(20.0, 1.0, &[1, 2])];
    let text = play("p", &requests);
    let trace = read(&text);
    assert_eq!(trace.requests[1].arrival_ns, Some(2_500_000_000));
    assert!(trace.warnings[0].to_string().contains("relative"), "{:?}", trace.warnings);
    let given = |nested_timestamps| TraceOptions { nested_timestamps, ..TraceOptions::default() };
    let relative = read_with(&text, &given(NestedTimestamps::Relative)).unwrap();
    assert_eq!(relative.warnings, []);
    assert_eq!(relative.requests, trace.requests);
    let error = read_with(&text, &given(NestedTimestamps::Absolute)).unwrap_err().to_string();
    assert!(
        error.contains("line 1, field `requests`") && error.contains("before the subagent itself at 12 s"),
        "{error}"
    );
    let strict = TraceOptions { strictness: crate::Strictness::Strict, ..TraceOptions::default() };
    assert!(matches!(read_with(&text, &strict), Err(TraceError::Row { problem: RowProblem::RelativeTimestamps, .. })));
    // One play whose requests would precede their subagent decides for the whole corpus.
    let plain = [call(0.0, 1.0, &[1]), subagent(2.0, "completed", &[call(3.0, 1.0, &[9])])];
    let both = format!("{}\n{text}", play("first", &plain));
    assert_eq!(read(&both).requests[1].arrival_ns, Some(5_000_000_000));
    assert_eq!(read(&play("first", &plain)).requests[1].arrival_ns, Some(3_000_000_000));
}

#[test]
fn blocks_are_those_of_a_play_and_what_is_not_a_whole_block_is_a_prompts_own() {
    let tail = |ids: &str| format!(r#"{{"type":"n","t":0,"model":"m","in":11,"out":0,"hash_ids":{ids}}}"#);
    let text = [play("p", &[tail("[5,6,7]"), tail("[5]")]), play("q", &[tail("[5,6]")])].join("\n");
    let trace = read(&text);
    let ids: Vec<Vec<u32>> = trace.requests.iter().map(|request| trace.hash_ids(request).to_vec()).collect();
    assert_eq!(ids, [[0, 1, 2], [0, 3, 4], [5, 6, 7]]);
    assert_eq!(trace.requests[0].output_tokens, 0);
    let wide = TraceOptions { hash_id_scope: Some(HashIdScope::Trace), ..TraceOptions::default() };
    let trace = read_with(&text, &wide).unwrap();
    assert_eq!(trace.hash_ids(&trace.requests[2]), [0, 1, 5]);
}

#[test]
fn documents_may_take_a_line_or_many() {
    let (one, other) = (play("p", &[call(0.0, 1.0, &[1])]), play("p", &[call(0.0, 1.0, &[1])]));
    let pretty = one.replace(',', ",\n\n").replace('{', "{\n");
    for text in [format!("{one}\n{other}"), format!("{pretty}\n{other}\n"), format!("{one}\n{pretty}")] {
        let trace = read(&text);
        assert_eq!(sessions(&trace), ["p", "p#2"]);
    }
}

#[test]
fn errors_name_line_field_and_place() {
    let fine = play("p", &[call(0.0, 1.0, &[1])]);
    let wrong = |from: &str, to: &str| refused(&format!("{fine}\n{}", fine.replace(from, to)));
    for (from, to, expected) in [
        (r#""in":4"#, r#""in":0"#, "line 2, field `requests`: requests[0].in: the prompt has no tokens"),
        (r#""in":4"#, r#""in":-4"#, "line 2, field `requests`: requests[0].in: invalid value: integer `-4`"),
        (r#""out":8,"#, "", "requests[0].out: the field is missing"),
        (r#""type":"s""#, r#""type":"z""#, "requests[0].type: unknown variant `z`"),
        (r#""t":0"#, r#""t":-1"#, "requests[0].t: invalid time -1 s"),
        (r#""api_time":1"#, r#""api_time":1e300"#, "requests[0].api_time: invalid time"),
        (
            r#""block_size":4"#,
            r#""block_size":8"#,
            "line 2, field `block_size`: the trace has blocks of 8 tokens, but 4",
        ),
        ("local", "global", "line 2, field `hash_id_scope`: `global` is not a scope"),
        (r#""id":"p""#, r#""id":" ""#, "line 2, field `id`: is empty"),
        ("]}", "", "line 2"),
    ] {
        let error = wrong(from, to);
        assert!(error.contains(expected), "{to}: {error}");
    }
    // In a document of several lines, the error names the line of the problem.
    let error = refused(&fine.replace(r#""in":4"#, "\n\n\"in\":\n{}"));
    assert!(error.contains("line 4, field `requests`: requests[0].in"), "{error}");
    let orphan = play("p", &[subagent(0.0, "async_launched", &[call(1.0, 1.0, &[1])]), call(2.0, 1.0, &[1])]);
    assert!(refused(&orphan).contains("requests[0]: no request is before this subagent"));
    let endless = play("p", &[call(0.0, 1.0, &[1]), subagent(2.0, "completed", &[])]);
    assert!(refused(&endless).contains("requests[1].requests: is empty"));
    let failed = play("p", &[call(0.0, 1.0, &[1]), subagent(2.0, "failed", &[])]);
    assert!(refused(&failed).contains("requests[1].status: `failed` is not replayed"));
    let nested = subagent(2.0, "completed", &[subagent(2.0, "async_launched", &[])]);
    assert!(
        refused(&play("p", &[call(0.0, 1.0, &[1]), nested]))
            .contains("requests[1].requests[0]: a subagent starts no other")
    );
    assert!(matches!(read_with(" \n", &TraceOptions::default()), Err(TraceError::Empty { .. })));
}

#[test]
fn unknown_fields_are_counted_once_a_play() {
    let text = play("p", &[call(0.0, 1.0, &[1]), call(2.0, 1.0, &[1, 2])]);
    let text = text.replace(r#""model":"m""#, r#""model":"m","new":1"#).replace(r#""id""#, r#""more":{},"id""#);
    let warnings: Vec<String> = read(&text).warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("unknown field `more`") && warnings[1].contains("`requests.new` was ignored on 1"));
}

#[test]
fn a_play_has_a_limit() {
    let many = vec![call(0.0, 0.0, &[1]); 32_769];
    assert!(refused(&play("p", &many)).contains("at most 32768"));
}
