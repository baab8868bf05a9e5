use super::row::{DecodedRow, Dialect};
use crate::{Format, HashIdScope, Strictness, Trace, TraceOptions, WarningKind, write_mooncake};
use proptest::prelude::*;

fn check_with(rows: &str, options: &TraceOptions) -> Result<Trace, String> {
    Trace::read(rows.as_bytes(), "t.jsonl", Format::Mooncake, options).map_err(|error| error.to_string())
}

fn check(rows: &str) -> Result<Trace, String> {
    check_with(rows, &TraceOptions::default())
}

fn error(rows: &str) -> String {
    check(rows).expect_err(rows)
}

fn all_ids(trace: &Trace) -> Vec<u32> {
    trace.requests.iter().flat_map(|request| trace.hash_ids(request).to_vec()).collect()
}

#[test]
fn all_aliases_are_accepted() {
    let trace = check(
        "{\"session_id\":\"a\",\"created_time\":5,\"input_tokens\":600,\"output_tokens\":2,\"hash_ids\":[4,9]}\n\
         \n  \r\n\
         {\"session_id\":\"a\",\"delay_ms\":0.25,\"output_length\":0,\"hash_ids\":[4,9,11]}",
    )
    .unwrap();
    let [first, second] = &trace.requests[..] else { panic!("two rows") };
    assert_eq!((first.arrival_ns, first.next_turn), (Some(0), Some(1)));
    assert_eq!((second.arrival_ns, second.delay_ns), (None, 250_000));
    assert_eq!((second.turn, second.line, second.session), (1, 4, 0));
    assert_eq!(second.input_tokens, 1536, "missing length is ids * block");
    assert_eq!(trace.hash_ids(second), [0, 1, 2]);
    assert_eq!((trace.distinct_hash_ids, trace.sessions), (3, 1));
}

#[test]
fn arrivals_are_shifted_to_the_earliest_first_turn() {
    let trace = check(
        "{\"timestamp\":20.5,\"output_length\":1,\"hash_ids\":[1]}\n\
         {\"session_id\":\"s\",\"timestamp\":-10,\"output_length\":1,\"hash_ids\":[1]}\n\
         {\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}",
    )
    .unwrap();
    let arrivals: Vec<_> = trace.requests.iter().map(|r| r.arrival_ns).collect();
    assert_eq!(arrivals, [Some(30_500_000), Some(0), Some(10_000_000)]);
    assert_eq!(trace.sessions, 3);
}

#[test]
fn a_delay_is_explicit_else_the_time_between_else_nothing() {
    let row = |rest: &str| format!("{{\"session_id\":\"s\",{rest}\"output_length\":1,\"hash_ids\":[1]}}\n");
    let rows = row("\"timestamp\":1000,")
        + &row("\"timestamp\":1300,")
        + &row("\"timestamp\":2000,\"delay\":7,")
        + &row("")
        + &row("\"timestamp\":9000,");
    let delays: Vec<_> = check(&rows).unwrap().requests.iter().map(|r| r.delay_ns).collect();
    assert_eq!(delays, [0, 300_000_000, 7_000_000, 0, 0]);
    let backwards = row("\"timestamp\":1000,") + &row("\"timestamp\":999,");
    assert!(error(&backwards).contains("line 2, field `timestamp`: turn 1 of its session"));
}

#[test]
fn errors_name_file_line_and_field() {
    let cases = [
        ("{\"timestamp\":0,\"output_length\":1}", "field `hash_ids`: the field is missing"),
        ("{\"timestamp\":0,\"hash_ids\":[1]}", "field `output_length`: the field is missing"),
        ("{\"timestamp\":0,\"output_length\":null,\"hash_ids\":[1]}", "field `output_length`: the field is missing"),
        ("{\"output_length\":1,\"hash_ids\":[1]}", "field `timestamp`: a first turn needs a timestamp"),
        (
            "{\"timestamp\":0,\"delay\":1,\"output_length\":1,\"hash_ids\":[1]}",
            "field `delay`: a first turn has nothing to wait for",
        ),
        (
            "{\"timestamp\":0,\"delay\":-1.5,\"output_length\":1,\"hash_ids\":[1]}",
            "field `delay`: invalid delay -1.5 ms",
        ),
        (
            "{\"timestamp\":0,\"input_length\":0,\"output_length\":1,\"hash_ids\":[1]}",
            "field `input_length`: the prompt has no tokens",
        ),
        ("{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[]}", "field `input_length`: the prompt has no tokens"),
        (
            "{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":[1]}",
            "field `input_length`: 513 tokens, but 1 hash ids of 512 tokens cover only 512",
        ),
        (
            "{\"timestamp\":0,\"output_length\":2,\"hash_ids\":[1],\"output_token_ids\":[5]}",
            "field `output_token_ids`: 1 token ids for an output length of 2",
        ),
        (
            "{\"timestamp\":0,\"output_length\":2,\"hash_ids\":[1],\"mm_items\":[{\"hash\":\"a\",\"offset\":510,\"tokens\":3}]}",
            "field `mm_items`: item 0, `tokens`: it ends at token 513, but the prompt has 512",
        ),
        (
            "{\"timestamp\":0,\"output_length\":2,\"hash_ids\":[1],\"mm_items\":[{\"offset\":510,\"tokens\":2}]}",
            "field `mm_items`: missing field `hash`",
        ),
        ("{\"timestamp\":0,\"output_length\":2,\"hash_ids\":[1],\"mm_items\":7}", "field `mm_items`: invalid type"),
        ("{\"timestamp\":NaN,\"output_length\":1,\"hash_ids\":[1]}", "field `timestamp`: expected value"),
        ("{\"timestamp\":1e300,\"output_length\":1,\"hash_ids\":[1]}", "field `timestamp`: invalid value"),
        (
            "{\"timestamp\":\"0\",\"output_length\":1,\"hash_ids\":[1]}",
            "field `timestamp`: invalid type: string \"0\", expected a number of milliseconds",
        ),
        ("{\"timestamp\":0,\"output_length\":-1,\"hash_ids\":[1]}", "field `output_length`: invalid value"),
        ("{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[-1]}", "field `hash_ids`: invalid value"),
        ("{\"timestamp\":0,\"output_length\":1,\"hash_ids\":7}", "field `hash_ids`: invalid type"),
        ("{\"input_length\":1,\"input_tokens\":1}", "field `input_length`: the field is given twice (`input_tokens`"),
        ("{\"timestamp\":0", ": EOF while parsing"),
        ("[1]", ": invalid type: sequence, expected one JSON object a line"),
        ("{} {}", ": trailing characters"),
    ];
    for (row, expected) in cases {
        let good = "{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}\n\n";
        let message = error(&format!("{good}{row}\n"));
        assert!(message.starts_with("trace `t.jsonl`, line 3"), "{message}");
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
    for empty in ["", "\n\n  \n"] {
        assert!(error(empty).contains("trace `t.jsonl` holds no request"));
    }
}

#[test]
fn rows_without_ids_share_nothing() {
    let trace = check("{\"timestamp\":0,\"input_length\":700,\"output_length\":1}\n{\"timestamp\":1,\"input_length\":700,\"output_length\":1,\"hash_ids\":null}").unwrap();
    assert_eq!(trace.requests.iter().map(|request| request.input_tokens).collect::<Vec<_>>(), [700, 700]);
    assert_eq!((all_ids(&trace).len(), trace.warnings.len()), (0, 0));
}

#[test]
fn texts_become_blocks_that_are_shared_as_far_as_they_agree() {
    let chat = |rest: &str| {
        let system = "x".repeat(200);
        format!(
            "{{\"messages\":[{{\"role\":\"system\",\"content\":\"{system}\"}}{rest}],\"timestamp\":0,\"output_length\":4}}\n"
        )
    };
    let rows = chat("")
        + &chat(",{\"role\":\"user\",\"content\":\"hello\"}")
        + "{\"text_input\":\"hi there\",\"timestamp\":0,\"output_length\":4}\n"
        + "{\"payload\":{\"prompt\":\"hi there\",\"max_tokens\":9},\"timestamp\":0,\"input_length\":40}";
    let trace = check(&rows).unwrap();
    assert_eq!(trace.block_size_tokens, 16);
    let lengths: Vec<_> = trace.requests.iter().map(|r| (r.input_tokens, r.output_tokens)).collect();
    assert_eq!(lengths, [(52, 4), (55, 4), (2, 4), (40, 9)]);
    let ids = |index: usize| trace.hash_ids(&trace.requests[index]).to_vec();
    assert_eq!((ids(0).len(), ids(1).len(), ids(2).len(), ids(3).len()), (4, 4, 1, 3));
    assert_eq!(ids(0)[..3], ids(1)[..3]);
    assert_ne!(ids(0)[3], ids(1)[3]);
    assert_eq!(ids(2)[0], ids(3)[0]);
    let warning = trace.warnings[0].to_string();
    assert_eq!(
        warning,
        "the length of a prompt given as text was estimated as 1 token for each 4 bytes on 3 row(s), first on line 1"
    );
    let strict = TraceOptions { strictness: Strictness::Strict, ..TraceOptions::default() };
    let error = check_with(&rows, &strict).unwrap_err();
    assert!(error.contains("line 1, field `input_length`: the prompt is given as text"), "{error}");
}

#[test]
fn timestamps_may_be_seconds() {
    let rows = "{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}\n{\"timestamp\":1.25,\"output_length\":1,\"hash_ids\":[1]}";
    let options = TraceOptions { timestamp_unit: crate::TimestampUnit::Seconds, ..TraceOptions::default() };
    let arrivals = check_with(rows, &options).unwrap().requests.iter().map(|r| r.arrival_ns).collect::<Vec<_>>();
    assert_eq!(arrivals, [Some(0), Some(1_250_000_000)]);
}

#[test]
fn leniency_is_counted_not_silent() {
    let rows = "{\"timestamp\":0,\"input_length\":2000,\"output_length\":1,\"hash_ids\":[1,2],\"chat\":{\"a\":[1]}}\n\
                {\"timestamp\":0,\"input_length\":3,\"output_length\":1,\"hash_ids\":[8,9],\"chat\":1,\"chat\":2}";
    let options = TraceOptions { strictness: Strictness::Lenient, ..TraceOptions::default() };
    let trace = check_with(rows, &options).unwrap();
    assert_eq!(trace.requests[0].input_tokens, 1024);
    assert_eq!(trace.hash_ids(&trace.requests[1]), [2], "the surplus id is not numbered");
    let warnings: Vec<_> = trace.warnings.iter().map(|w| (w.kind.clone(), w.first_line, w.rows)).collect();
    assert_eq!(
        warnings,
        [
            (WarningKind::InputLengthClamped, 1, 1),
            (WarningKind::UnknownField("chat".into()), 1, 2),
            (WarningKind::SurplusHashIds, 2, 1),
        ]
    );
}

#[test]
fn closed_loop_traces_need_no_timestamps() {
    let options = TraceOptions { first_timestamp_required: false, ..TraceOptions::default() };
    let trace = check_with("{\"output_length\":1,\"hash_ids\":[1]}", &options).unwrap();
    assert_eq!(trace.requests[0].arrival_ns, None);
}

#[test]
fn policies_and_recorded_tokens_are_kept() {
    let trace = check(
        "{\"request_id\":\"r\\u00e9\",\"timestamp\":0,\"output_length\":2,\"output_token_ids\":[7,8],\"hash_ids\":[1],\
          \"priority\":-3,\"strict_priority\":2,\"policy_class\":\"gold\"}\n\
         {\"timestamp\":0,\"output_length\":0,\"output_token_ids\":[],\"hash_ids\":[1],\"policy_class\":\"gold\"}",
    )
    .unwrap();
    let first = &trace.requests[0];
    assert_eq!(first.request_id.as_deref(), Some("ré"));
    assert_eq!(trace.output_token_ids(first), [7, 8]);
    assert_eq!((first.priority, first.strict_priority), (-3, 2));
    assert_eq!(trace.policy_class(&trace.requests[1]), Some("gold"));
    assert_eq!(trace.policy_classes.len(), 1);
}

/// Rows of a few sessions as text, with times in nanosecond precision.
fn arb_rows() -> impl Strategy<Value = Vec<String>> {
    let row = (
        proptest::option::of(0u8..4),
        0u64..10_000_000_000,
        1u32..3000,
        0u32..6,
        proptest::bool::ANY,
        any::<i32>(),
        proptest::collection::vec(0u64..40, 6),
        proptest::option::of(0u32..4),
    );
    proptest::collection::vec(row, 1..40).prop_map(|rows| {
        let mut started = [false; 4];
        rows.into_iter()
            .map(|(session, ns, input, output, tokens, priority, ids, image)| {
                let mut text = format!(
                    "\"input_length\":{input},\"output_length\":{output},\"priority\":{priority},\"hash_ids\":{ids:?}"
                );
                if tokens {
                    let tokens: Vec<u32> = (0..output).collect();
                    text += &format!(",\"output_token_ids\":{tokens:?}");
                }
                if let Some(image) = image {
                    text += &format!(
                        ",\"mm_items\":[{{\"hash\":\"{image}\",\"offset\":{},\"tokens\":1,\"modality\":\"image\"}}]",
                        input - 1
                    );
                }
                let ms = format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000);
                let later_turn = session.is_some_and(|s: u8| std::mem::replace(&mut started[usize::from(s)], true));
                text += &match later_turn {
                    true => format!(",\"delay\":{ms}"),
                    false => format!(",\"timestamp\":{ms}"),
                };
                if let Some(session) = session {
                    text += &format!(",\"session_id\":\"{session}\"");
                }
                format!("{{{text}}}\n")
            })
            .collect()
    })
}

proptest! {
    /// An exported trace has the same sessions, times and shared blocks.
    #[test]
    fn a_written_trace_reads_back_the_same(rows in arb_rows()) {
        let mut expected = check(&rows.concat()).unwrap();
        let mut text = Vec::new();
        write_mooncake(&expected, &mut text).unwrap();
        let actual = check(std::str::from_utf8(&text).unwrap()).unwrap();
        // The writer drops the surplus ids of which the reader warned.
        expected.warnings.clear();
        prop_assert_eq!(actual, expected);
    }

    /// The turns of a session must form one chain; otherwise a replay would lose requests.
    #[test]
    fn turns_chain_through_every_session(rows in arb_rows()) {
        let trace = check(&rows.concat()).unwrap();
        let firsts = trace.requests.iter().filter(|r| r.turn == 0).count();
        prop_assert_eq!(firsts, trace.sessions as usize);
        for request in &trace.requests {
            if let Some(next) = request.next_turn {
                let next = &trace.requests[next as usize];
                prop_assert_eq!((next.session, next.turn), (request.session, request.turn + 1));
            }
        }
        let earliest = trace.requests.iter().filter_map(|r| r.arrival_ns).min();
        prop_assert_eq!(earliest, Some(0));
    }
}

#[test]
fn strict_reading_has_no_warnings() {
    let strict = TraceOptions { strictness: Strictness::Strict, ..TraceOptions::default() };
    let row = |rest: &str| format!("\n{{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1,2]{rest}}}");
    assert_eq!(check_with(&row(""), &strict).unwrap().warnings, []);
    for (rest, expected) in [
        (",\"chat\":1", "line 2: `chat` is not a field of this format"),
        (",\"wait_for\":[]", "line 2: `wait_for` is not a field of this format"),
        (",\"input_length\":3", "line 2, field `hash_ids`: 2 hash ids, but the prompt has only 1 blocks"),
        (",\"input_length\":2000", "line 2, field `input_length`: 2000 tokens, but 2 hash ids"),
    ] {
        let message = check_with(&row(rest), &strict).unwrap_err();
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
}

#[test]
fn deltas_are_plain_rows_of_what_is_new() {
    let rows = "{\"session_id\":\"s\",\"timestamp\":0,\"input_length\":16,\"output_length\":4,\"hash_ids\":[201]}\n\
                {\"session_id\":\"s\",\"timestamp\":10,\"delay\":5,\"input_length\":8,\"output_length\":4,\"hash_ids\":[202]}";
    let options = TraceOptions::default();
    let trace = Trace::read(rows.as_bytes(), "t", Format::MooncakeDelta, &options).unwrap();
    assert!(trace.is_delta);
    assert_eq!((trace.requests[1].input_tokens, trace.requests[1].delay_ns), (8, 5_000_000));
    assert!(!check(rows).unwrap().is_delta);
}

#[test]
fn ids_of_sessions_can_be_kept_apart() {
    let row =
        |session| format!("{{\"session_id\":\"{session}\",\"timestamp\":0,\"output_length\":1,\"hash_ids\":[7,8]}}\n");
    let rows = row("a") + &row("b") + &row("a");
    let options = TraceOptions { hash_id_scope: Some(HashIdScope::Session), ..TraceOptions::default() };
    assert_eq!(all_ids(&check_with(&rows, &options).unwrap()), [0, 1, 2, 3, 0, 1]);
    assert_eq!(all_ids(&check(&rows).unwrap()), [0, 1, 0, 1, 0, 1]);
}

fn arb_row() -> impl Strategy<Value = String> {
    let name = proptest::sample::select(vec![
        "timestamp",
        "created_time",
        "delay",
        "input_length",
        "output_length",
        "hash_ids",
        "output_token_ids",
        "session_id",
        "priority",
        "strict_priority",
        "policy_class",
        "request_id",
        "play_id",
        "model",
        "other",
    ]);
    let value = prop_oneof![
        any::<u64>().prop_map(|x| x.to_string()),
        (0u32..5000).prop_map(|x| x.to_string()),
        any::<i32>().prop_map(|x| x.to_string()),
        (0.0f64..1e7).prop_map(|x| x.to_string()),
        any::<f64>().prop_map(|x| format!("{x:e}")),
        "\"[a-z\u{e9}]{0,4}\"",
        proptest::sample::select(vec![
            "null",
            "01",
            "1.",
            "-0",
            "-5",
            "1e3",
            "1.5E2",
            "[]",
            "[ 1 ,2, 3 ]",
            "[1,]",
            "[01]",
            "[1 2]",
            "[1.0]",
            "99999999999999999999",
            "[18446744073709551615]",
            "18446744073709551616",
            "\"a\\n\"",
            "true",
            "{}",
            "\"\u{1}\"",
            "0.1",
            "1234567.000001",
        ])
        .prop_map(str::to_owned),
        proptest::collection::vec(any::<u32>(), 0..5).prop_map(|list| format!("{list:?}")),
    ];
    let space = proptest::sample::select(vec!["", "", " ", "\t "]);
    (proptest::collection::vec((name, value, space), 0..6), "[ }x]{0,2}").prop_map(|(fields, end)| {
        let fields: Vec<String> = fields
            .iter()
            .map(|(name, value, space)| format!("{space}\"{name}\"{space}:{space}{value}{space}"))
            .collect();
        format!("{{{}}}{end}", fields.join(","))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// The fast path must return the same as the parser.
    #[test]
    fn the_short_cut_reads_what_the_parser_reads(text in arb_row()) {
        for dialect in [Dialect::Plain, Dialect::Agentic] {
            let (mut short, mut whole) = (DecodedRow::default(), DecodedRow::default());
            let (short_result, whole_result) =
                (short.decode(text.as_bytes(), dialect), whole.decode_slowly(text.as_bytes(), dialect));
            prop_assert_eq!(&short_result, &whole_result);
            if whole_result.is_ok() {
                prop_assert_eq!(format!("{short:?}"), format!("{whole:?}"));
            }
        }
    }
}

#[test]
fn usual_rows_take_the_short_cut() {
    for text in [
        "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1, 2]}\r\n",
        "{\"timestamp\":27.25,\"session_id\":\"s\",\"delay\":1,\"output_length\":0,\"hash_ids\":[ 5,6 ]}",
    ] {
        assert!(super::scan::row(&mut DecodedRow::default(), text.as_bytes(), Dialect::Plain), "{text}");
    }
}
