//! Lines stay the same when they are written and read, and no text makes a reader panic.

use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vcr_steplog::{Blocks, Id, LogKind, Scheduled, StepEvent, StepLine, StepLog, WindowFreed};

use crate::recordings::{CaseCopy, group, text_of};

fn arb_id() -> impl Strategy<Value = Id> {
    prop_oneof![any::<u64>().prop_map(Id::Number), any::<String>().prop_map(Id::Name)]
}

fn arb_ids() -> impl Strategy<Value = Vec<Id>> {
    vec(arb_id(), 0..4)
}

fn arb_scheduled() -> impl Strategy<Value = Scheduled> {
    let kind = proptest::sample::select(vec!['n', 'p', 'r']);
    let blocks = prop_oneof![
        vec(any::<u32>(), 0..4).prop_map(Blocks::One),
        vec(vec(any::<u32>(), 0..4), 1..4).prop_map(Blocks::ByGroup),
    ];
    (arb_id(), any::<u32>(), any::<u32>(), kind, blocks, any::<u32>()).prop_map(
        |(request, tokens, computed, kind, blocks, drafts)| Scheduled {
            request,
            tokens,
            computed,
            kind,
            blocks,
            drafts,
        },
    )
}

fn arb_event() -> impl Strategy<Value = StepEvent> {
    let blocks = || vec(any::<u64>(), 0..4);
    let group = any::<Option<u32>>;
    prop_oneof![
        (any::<Option<u64>>(), blocks(), group())
            .prop_map(|(parent, blocks, group)| StepEvent::Stored(parent, blocks, group)),
        (blocks(), group()).prop_map(|(blocks, group)| StepEvent::Removed(blocks, group)),
        Just(StepEvent::Cleared),
    ]
}

fn arb_ms() -> impl Strategy<Value = Option<f64>> {
    option::of(proptest::num::f64::NORMAL | proptest::num::f64::ZERO)
}

prop_compose! {
    fn arb_place()(
        of in any::<Option<String>>(),
        pool in any::<Option<String>>(),
        engine in any::<Option<u32>>(),
        i in any::<Option<u64>>(),
        add in arb_ids(),
        abort in arb_ids(),
        start_ms in arb_ms(),
        duration_ms in arb_ms(),
    ) -> StepLine {
        StepLine { of, pool, engine, i, add, abort, start_ms, duration_ms, ..StepLine::default() }
    }
}

prop_compose! {
    fn arb_schedule()(
        s in any::<Option<u64>>(),
        sched in option::of(vec(arb_scheduled(), 0..4)),
        tot in any::<Option<u32>>(),
        pre in arb_ids(),
        flush in arb_ids(),
        run in option::of(arb_ids()),
        wait in any::<Option<u64>>(),
        free in any::<Option<u32>>(),
        win in vec((arb_id(), any::<u32>(), vec(any::<u32>(), 0..4)), 0..4),
        why in any::<Option<String>>(),
    ) -> StepLine {
        let win = win.into_iter().map(|(id, group, blocks)| WindowFreed(id, group, blocks)).collect();
        StepLine { s, sched, tot, pre, flush, run, wait, free, win, why, ..StepLine::default() }
    }
}

prop_compose! {
    fn arb_result()(
        pc in any::<Option<[u64; 6]>>(),
        u in any::<Option<u64>>(),
        sampled in btree_map(any::<u64>(), any::<u32>(), 0..4),
        out in option::of(vec((arb_id(), any::<u32>()), 0..4)),
        drafts in vec((arb_id(), any::<u32>()), 0..4),
        fin in vec((arb_id(), any::<String>()), 0..4),
        ev in vec(arb_event(), 0..4),
    ) -> StepLine {
        StepLine { pc, u, sampled, out, drafts, fin, ev, ..StepLine::default() }
    }
}

fn arb_line() -> impl Strategy<Value = StepLine> {
    (arb_place(), arb_schedule(), arb_result()).prop_map(|(place, schedule, result)| StepLine {
        of: place.of,
        pool: place.pool,
        engine: place.engine,
        i: place.i,
        add: place.add,
        abort: place.abort,
        start_ms: place.start_ms,
        duration_ms: place.duration_ms,
        pc: result.pc,
        u: result.u,
        sampled: result.sampled,
        out: result.out,
        drafts: result.drafts,
        fin: result.fin,
        ev: result.ev,
        ..schedule
    })
}

#[derive(Clone, Debug)]
enum Edit {
    Put(usize, u8),
    Insert(usize, &'static str),
    Cut(usize, usize),
    Double(usize, usize),
}

fn arb_edits() -> impl Strategy<Value = Vec<Edit>> {
    let pieces = vec![
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "\\",
        "-",
        "null",
        "1e999",
        "-0.0",
        "18446744073709551616",
        "\"n\"",
        "\"kind\":",
        "\"\\ud800\"",
        "\n",
        "\u{feff}",
    ];
    let edit = prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        (any::<usize>(), proptest::sample::select(pieces)).prop_map(|(at, piece)| Edit::Insert(at, piece)),
        (any::<usize>(), 0usize..40).prop_map(|(at, len)| Edit::Cut(at, len)),
        (any::<usize>(), 0usize..40).prop_map(|(at, len)| Edit::Double(at, len)),
    ];
    vec(edit, 1..4)
}

fn edited(text: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for edit in edits {
        let at = |at: &usize| at % bytes.len().max(1);
        let range = |from: &usize, len: &usize| at(from)..(at(from) + len).min(bytes.len());
        match edit {
            Edit::Put(place, byte) => {
                let place = at(place);
                bytes[place..].iter_mut().take(1).for_each(|old| *old = *byte);
            }
            Edit::Insert(place, piece) => {
                let place = at(place).min(bytes.len());
                bytes.splice(place..place, piece.bytes());
            }
            Edit::Cut(from, len) => {
                bytes.drain(range(from, len));
            }
            Edit::Double(from, len) => {
                let range = range(from, len);
                bytes.splice(range.start..range.start, bytes[range.clone()].to_vec());
            }
        }
    }
    bytes
}

fn first_lines(case: &str, len: usize) -> Vec<String> {
    text_of(&group(case), "steps.jsonl").lines().take(len).map(|line| format!("{line}\n")).collect()
}

/// `times / fraction` of the usual number of cases (`PROPTEST_CASES`).
fn config(times: u32, fraction: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    // There is no library root next to which failing cases could be stored.
    ProptestConfig { failure_persistence: None, cases: usual.cases * times / fraction, ..usual }
}

proptest! {
    #![proptest_config(config(1, 1))]

    /// A log that is written and read is the same, to the last bit of its times.
    #[test]
    fn a_line_survives_being_written_and_read(line in arb_line()) {
        let text = serde_json::to_string(&line).expect("a line is JSON");
        let read: StepLine = serde_json::from_str(&text).expect("it was written like that");
        prop_assert_eq!(&read, &line);
        if line.s.is_some() || line.u.is_some() {
            let log = StepLog::parse(Path::new("log"), text.as_bytes()).expect("it is a log of one line");
            prop_assert_eq!(log.kind, LogKind::Scheduler);
            prop_assert_eq!(log.lines, [line]);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = StepLog::parse(Path::new("bytes"), &bytes[..]);
    }
}

/// Lines of either schema with some changed bytes are read or refused. What is read can be written and read again.
#[test]
fn changed_lines_never_panic() {
    for (case, head) in [("random-0.33/random-1-087", 0), ("vllm-cpu/wire", 1)] {
        let lines = first_lines(case, 40);
        let strategy = (0..lines.len(), arb_edits());
        let mut runner = TestRunner::new(config(2, 1));
        let outcome = runner.run(&strategy, |(line, edits)| {
            let mut text = lines[..head].concat().into_bytes();
            text.extend(edited(lines[line].as_bytes(), &edits));
            if let Ok(log) = StepLog::parse(Path::new("changed"), &text[..]) {
                for line in log.lines {
                    let text = serde_json::to_string(&line).expect("a line is JSON");
                    let again: StepLine = serde_json::from_str(&text).expect("it was written like that");
                    prop_assert_eq!(again, line);
                }
            }
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}

/// Recordings with some changed bytes are replayed to a difference or refused. No value makes the engine panic.
#[test]
fn changed_recordings_never_panic() {
    let cases = [
        ("random-0.33/random-1-184", "steps.jsonl"),
        ("random-0.33/random-1-184", "requests.jsonl"),
        ("random-0.32/random-1-047", "steps.jsonl"),
        ("vllm-cpu/wire", "steps.jsonl"),
    ];
    for (case, file) in cases {
        let copy = CaseCopy::of(case);
        let lines: Vec<String> = copy.text(file).lines().map(|line| format!("{line}\n")).collect();
        let strategy = (0..lines.len(), any::<usize>(), 0u64..6);
        let mut runner = TestRunner::new(config(1, 4));
        let outcome = runner.run(&strategy, |(line, place, value)| {
            let changed = with_number(&lines[line], place, [0, 1, 3, 77, 65_536, 4_294_967_295][value as usize]);
            copy.write(
                file,
                &[&lines[..line].concat(), &changed, &lines[line + 1..].concat()].map(String::as_str).concat(),
            );
            let _ = copy.replay();
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}

fn with_number(line: &str, place: usize, value: u64) -> String {
    let is_start = |at: usize| line.as_bytes()[at].is_ascii_digit() && !line.as_bytes()[at - 1].is_ascii_digit();
    let starts: Vec<usize> = (1..line.len()).filter(|&at| is_start(at)).collect();
    let Some(&start) = starts.get(place % starts.len().max(1)) else { return line.to_owned() };
    let end = line[start..].find(|letter: char| !letter.is_ascii_digit()).map_or(line.len(), |len| start + len);
    format!("{}{value}{}", &line[..start], &line[end..])
}

#[test]
fn a_line_may_have_only_what_came_from_outside() {
    for text in [r#""add":[1]"#, r#""more":[1]"#, r#""abort":[1]"#, r#""gram":[[1,true]]"#, r#""pause":"PAUSED_ALL""#] {
        let line = format!("{{\"i\":4,{text}}}");
        let log = StepLog::parse(Path::new("steps.jsonl"), line.as_bytes()).expect(text);
        assert_eq!(serde_json::to_string(&log.lines[0]).expect("it is written"), line);
    }
}
