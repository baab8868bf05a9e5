//! The inputs of scheduler policies, and how the host handles their answers.

use vcr_core::policy::{EngineView, Native, PolicyEvent, Preference, Progress, SchedulingPolicy, Slo};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, Policy, Prompt, RequestSpec, TokenSource};
use vcr_policy::{FairShareConfig, ShortestPromptFirstConfig};

use crate::components::built::built;
use crate::components::wat::{answer_error, open, scheduler_policy};

fn policy(decide: &str) -> Box<dyn SchedulingPolicy> {
    open(&scheduler_policy(decide)).scheduler_policy("{}", 7).expect("it configures")
}

fn arrived(slot: u32) -> PolicyEvent {
    PolicyEvent::Arrived {
        slot,
        arrival_ns: 77,
        prompt_tokens: 100,
        max_tokens: 50,
        priority: -2,
        adapter: None,
        tenant: u64::MAX - 1,
        slo: Slo { ttft_ns: Some(900), tpot_ns: None, e2e_ns: Some(1 << 40) },
    }
}

const PROGRESS: [Progress; 2] = [
    Progress { slot: 3, computed_tokens: 40, output_tokens: 4 },
    Progress { slot: 9, computed_tokens: 50, output_tokens: 5 },
];

/// Makes a call and returns the preferences or the error text.
fn decide(policy: &mut dyn SchedulingPolicy, events: &[PolicyEvent]) -> Result<Vec<Preference>, String> {
    let before = Preference::AdmissionRank { slot: 99, rank: 99 };
    let mut preferences = vec![before];
    let batch = EngineView {
        now_ns: 5_000,
        budget_tokens: 1,
        block_size_tokens: 16,
        running_slots: 20,
        free_blocks: 300,
        total_blocks: 4_000,
        events,
        progress: &PROGRESS,
    };
    let result = policy.decide(&batch, &mut preferences);
    assert_eq!(preferences.remove(0), before, "what was there stays");
    match result {
        Ok(()) => Ok(preferences),
        Err(error) => {
            assert!(preferences.is_empty(), "a failed call leaves nothing behind");
            Err(error.to_string())
        }
    }
}

/// The columns of an answer: ranks for admission and eviction, tokens of caps, and slots without a cap.
#[derive(Clone, Copy, Default)]
struct Columns<'a> {
    admission: (&'a [u64], &'a [u64]),
    eviction: (&'a [u64], &'a [u64]),
    caps: (&'a [u64], &'a [u64]),
    uncapped: &'a [u64],
}

fn answer(columns: Columns<'_>) -> String {
    let Columns { admission, eviction, caps, uncapped } = columns;
    let lists =
        [(4, admission.0), (8, admission.1), (4, eviction.0), (8, eviction.1), (4, caps.0), (4, caps.1), (4, uncapped)];
    let mut body = "(i32.store8 (i32.const 32) (i32.const 0))".to_owned();
    let mut address: usize = 1024;
    for (place, (bytes, entries)) in lists.into_iter().enumerate() {
        let at = 36 + 8 * place;
        body += &format!(
            "(i32.store (i32.const {at}) (i32.const {address})) (i32.store (i32.const {}) (i32.const {}))",
            at + 4,
            entries.len()
        );
        let of = if bytes == 8 { "i64" } else { "i32" };
        for entry in entries {
            body += &format!("({of}.store (i32.const {address}) ({of}.const {entry}))");
            address += bytes;
        }
        address = address.next_multiple_of(8);
    }
    body + "(i32.const 32)"
}

/// Makes a call that returns these columns, with requests in slots 3 and 4.
fn answered(columns: Columns<'_>) -> Result<Vec<Preference>, String> {
    let ended = PolicyEvent::Ended { slot: 5, computed_tokens: 1, output_tokens: 1 };
    let events = [arrived(3), arrived(4), arrived(5), ended];
    decide(policy(&answer(columns)).as_mut(), &events)
}

/// Returns a number that the guest computes, encoded as the rank of slot 3.
fn observed(number: &str, events: &[PolicyEvent]) -> u64 {
    let rank = Columns { admission: (&[3], &[0]), ..Columns::default() };
    // The slot is stored at 1024, the rank at 1032.
    let body = answer(rank).replacen(
        "(i64.store (i32.const 1032) (i64.const 0))",
        &format!("(i64.store (i32.const 1032) {number})"),
        1,
    );
    match decide(policy(&body).as_mut(), events).expect("it decides")[..] {
        [Preference::AdmissionRank { slot: 3, rank }] => rank.cast_unsigned(),
        ref preferences => panic!("one rank, not {preferences:?}"),
    }
}

#[test]
fn events_and_numbers_arrive_in_order() {
    let events = [
        arrived(3),
        PolicyEvent::Admitted { slot: 3, cached_tokens: 16 },
        PolicyEvent::Preempted { slot: 3 },
        PolicyEvent::Ended { slot: 3, computed_tokens: 12, output_tokens: 6 },
        arrived(3),
    ];
    // Kind, slot, arrival, prompt tokens, output tokens, priority, adapter, tenant, objectives.
    let arrival: &[(&str, usize, u64)] = &[
        ("i64.load8_u", 0, 0),
        ("i64.load32_u", 8, 3),
        ("i64.load", 16, 77),
        ("i64.load32_u", 24, 100),
        ("i64.load32_u", 28, 50),
        ("i64.load32_s", 32, u64::MAX - 1),
        ("i64.load8_u", 36, 0),
        ("i64.load", 48, u64::MAX - 1),
        ("i64.load8_u", 56, 1),
        ("i64.load", 64, 900),
        ("i64.load8_u", 72, 0),
        ("i64.load8_u", 88, 1),
        ("i64.load", 96, 1 << 40),
    ];
    let expected: [&[(&str, usize, u64)]; 5] = [
        arrival,
        &[("i64.load8_u", 0, 1), ("i64.load32_u", 8, 3), ("i64.load32_u", 12, 16)],
        &[("i64.load8_u", 0, 2), ("i64.load32_u", 8, 3)],
        &[("i64.load8_u", 0, 3), ("i64.load32_u", 8, 3), ("i64.load32_u", 12, 12), ("i64.load32_u", 16, 6)],
        arrival,
    ];
    for (index, fields) in expected.into_iter().enumerate() {
        for (load, offset, value) in fields {
            let load = format!("({load} offset={} (local.get $events))", 104 * index + offset);
            assert_eq!(observed(&load, &events), *value, "event {index}, offset {offset}");
        }
    }
    for (column, entries) in [("$slots", [3, 9]), ("$computed", [40, 50]), ("$outputs", [4, 5])] {
        for (index, value) in entries.into_iter().enumerate() {
            let load = format!("(i64.load32_u offset={} (local.get {column}))", 4 * index);
            assert_eq!(observed(&load, &events), value, "{column} {index}");
        }
    }
    let rest =
        "(i64.add (local.get $now) (i64.extend_i32_u (i32.add (local.get $budget) (i32.add (local.get $running_slots)
        (i32.add (local.get $free_blocks) (local.get $total_blocks))))))";
    assert_eq!(observed(rest, &events), 9_321);
    assert_eq!(observed("(i64.extend_i32_u (local.get $block_size))", &events), 16);
    let lengths = "(i64.add (i64.mul (i64.const 100) (i64.extend_i32_u (local.get $events_len)))
        (i64.extend_i32_u (local.get $progress_len)))";
    assert_eq!(observed(lengths, &events), 502);
}

#[test]
fn every_kind_of_preference_is_understood() {
    let columns =
        Columns { admission: (&[3], &[u64::MAX]), eviction: (&[3], &[1 << 63]), caps: (&[3], &[512]), uncapped: &[4] };
    let expected = [
        Preference::AdmissionRank { slot: 3, rank: -1 },
        Preference::EvictionRank { slot: 3, rank: i64::MIN },
        Preference::ChunkCap { slot: 3, tokens: Some(512) },
        Preference::ChunkCap { slot: 4, tokens: None },
    ];
    assert_eq!(answered(columns), Ok(expected.to_vec()));
    assert_eq!(answered(Columns::default()), Ok(Vec::new()));
}

#[test]
fn a_preference_that_cannot_be_fails_and_is_named() {
    let absent = "names no current request: that slot is empty";
    let none = Columns::default();
    let cases = [
        (
            Columns { admission: (&[3, 4], &[1]), ..none },
            "it answered 2 entries of `slot` and 1 of `rank` in `admission`".to_owned(),
        ),
        (
            Columns { caps: (&[3], &[1, 2]), ..none },
            "it answered 1 entries of `slot` and 2 of `tokens` in `chunk-caps`".to_owned(),
        ),
        (Columns { admission: (&[2], &[1]), ..none }, format!("its admission rank 1 of slot 2 {absent}")),
        (Columns { admission: (&[5], &[1]), ..none }, absent.to_owned()),
        (Columns { eviction: (&[4_294_967_295], &[1]), ..none }, absent.to_owned()),
        (
            Columns { admission: (&[3, 3], &[1, 2]), eviction: (&[3], &[1]), ..none },
            "its admission rank 2 of slot 3 is the second of its kind".to_owned(),
        ),
        (
            Columns { caps: (&[3], &[4]), uncapped: &[3], ..none },
            "its no chunk cap of slot 3 is the second of its kind".to_owned(),
        ),
        (
            Columns { caps: (&[3], &[0]), ..none },
            "its chunk cap 0 of slot 3 lets the request compute nothing: a chunk cap is at least 1".to_owned(),
        ),
    ];
    for (columns, expected) in cases {
        let error = answered(columns).expect_err(&expected);
        assert!(error.starts_with("scheduler policy `hostile` failed: in `decide`: "), "{error}");
        assert!(error.contains(&expected), "{error}");
        assert!(error.contains("; "), "no hint: {error}");
    }
}

#[test]
fn whatever_else_a_policy_does_ends_with_a_reason() {
    // With three requests, nine preferences are possible.
    let huge = answer(Columns::default()).replacen(
        "(i32.store (i32.const 40) (i32.const 0))",
        "(i32.store (i32.const 40) (i32.const 40000))",
        1,
    );
    let huge = format!("(drop (memory.grow (i32.const 20))) {huge}");
    let cases = [
        ("(loop (br 0)) (i32.const 0)".to_owned(), "it looped forever"),
        ("(unreachable)".to_owned(), "it panicked"),
        ("(drop (memory.grow (i32.const 4000))) (i32.const 0)".to_owned(), "bytes of memory"),
        (answer_error(32), "`factor` is 0"),
        (huge, "its answer is larger than the 65632 bytes"),
    ];
    for (body, expected) in cases {
        let mut policy = policy(&body);
        let events = [arrived(3), arrived(4), arrived(5)];
        let error = decide(policy.as_mut(), &events).expect_err(expected);
        assert!(error.contains(expected), "{error}");
        let error = decide(policy.as_mut(), &[]).expect_err("it is over");
        assert!(error.contains("it had failed before"), "{error}");
    }
}

struct Zeros;

impl TokenSource for Zeros {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        0
    }
}

/// All decisions of an engine under `policy`, with too few blocks for all requests.
fn decisions(policy: &mut dyn SchedulingPolicy) -> Vec<(u64, u32, u64)> {
    let input = EngineConfigInput {
        policy: Policy::Ranked,
        num_gpu_blocks: 200,
        max_num_seqs: 12,
        max_num_batched_tokens: 256,
        ..EngineConfigInput::default()
    };
    let mut engine = Engine::new(EngineConfig::new(input).expect("valid"));
    let mut decisions = Vec::new();
    let mut submitted = 0;
    for step in 0.. {
        while submitted < 300 && submitted < step / 2 * 3 {
            let drawn = vcr_core::seed::mix(submitted);
            let mut prompt = Prompt::new(16, 0);
            prompt.push_run(submitted, 0, 1 + drawn as u32 % 600);
            let spec = RequestSpec {
                arrival_ns: step * 1_000_000,
                tenant: (drawn >> 40) % 5,
                slo: Slo::default(),
                ..RequestSpec::new(submitted, prompt, 1 + (drawn >> 20) as u32 % 200)
            };
            engine.submit(spec).expect("it fits");
            submitted += 1;
        }
        if !engine.has_schedulable_requests() {
            if submitted == 300 {
                break;
            }
            continue;
        }
        engine.apply_policy(policy, step * 1_000_000).expect("it decides well");
        let plan = engine.schedule();
        decisions.extend(plan.preempted.iter().map(|&tag| (step, 0, tag)));
        decisions.extend(plan.scheduled.iter().map(|entry| (step, entry.num_scheduled_tokens, entry.tag)));
        if engine.step_in_flight() {
            engine.update(&mut Zeros);
        }
    }
    decisions
}

#[test]
fn the_shipped_guests_decide_as_their_native_twins() {
    let aging = r#"{"aging_tokens_per_s": 333.25, "max_chunk_tokens": 100}"#;
    let shares = r#"{"weights": {"3": 2.0, "1": 0.3}, "default_weight": 1.5}"#;
    let shortest = ShortestPromptFirstConfig { aging_tokens_per_s: 333.25, max_chunk_tokens: Some(100) };
    let weights = [(3, 2.0), (1, 0.3)].into_iter().collect();
    let fair = FairShareConfig { weights, default_weight: 1.5, max_chunk_tokens: None };
    let mut twins: [(&str, &str, Box<dyn SchedulingPolicy>); 2] = [
        ("shortest-prompt-first", aging, Box::new(Native(shortest.build().expect("valid")))),
        ("fair-share", shares, Box::new(Native(fair.build().expect("valid")))),
    ];
    for (name, config, native) in &mut twins {
        let Some(module) = built(name) else { return };
        let mut guest = module.scheduler_policy(config, 1).expect("it configures");
        let expected = decisions(native.as_mut());
        assert!(expected.iter().any(|&(_, tokens, _)| tokens == 0), "no request was preempted under {name}");
        assert_eq!(decisions(guest.as_mut()), expected, "{name}");
        let error = module.scheduler_policy(r#"{"weight": 1}"#, 1).err().expect("no such field").to_string();
        assert!(error.contains("unknown field `weight`"), "{error}");
    }
}
