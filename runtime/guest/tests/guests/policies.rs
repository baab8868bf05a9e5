//! Scheduler policies: what reaches them, and what the host makes of their
//! answers.

use vcr_core::policy::{NO_CHUNK_CAP, PolicyBatch, PolicyEvent, Preference, Progress, SchedulingPolicy};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, Policy, Prompt, RequestSpec, TokenSource};
use vcr_policy::{FairShareConfig, Native, ShortestPromptFirstConfig};

use crate::components::built::built;
use crate::components::wat::{answer_error, answer_list, answer_words, open, scheduler_policy};

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
        lora: None,
        tenant: u64::MAX - 1,
    }
}

const PROGRESS: [Progress; 2] = [
    Progress { slot: 3, computed_tokens: 40, output_tokens: 4 },
    Progress { slot: 9, computed_tokens: 50, output_tokens: 5 },
];

/// Makes a call and gives the preferences or the whole error text.
fn decide(policy: &mut dyn SchedulingPolicy, events: &[PolicyEvent]) -> Result<Vec<Preference>, String> {
    let before = Preference::AdmissionRank { slot: 99, rank: 99 };
    let mut preferences = vec![before];
    let batch = PolicyBatch {
        now_ns: 5_000,
        budget_tokens: 1,
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

/// Result of an answer of these words, with requests in the slots 3 and 4.
fn answered(words: &[u64]) -> Result<Vec<Preference>, String> {
    let ended = PolicyEvent::Ended { slot: 5, computed_tokens: 1, output_tokens: 1 };
    let events = [arrived(3), arrived(4), arrived(5), ended];
    decide(policy(&answer_words("i64", words)).as_mut(), &events)
}

/// A number that the guest computes, by way of the rank of slot 3.
fn observed(word: &str, events: &[PolicyEvent]) -> u64 {
    let body = format!(
        "(i64.store (i32.const 1024) (i64.const 0)) (i64.store (i32.const 1032) (i64.const 3))
        (i64.store (i32.const 1040) {word}) {}",
        answer_list(1024, 3)
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
    let arrival = [0, 3, 77, 100, 50, u64::MAX - 1, u64::MAX, u64::MAX - 1];
    let expected: [[u64; 8]; 5] =
        [arrival, [1, 3, 16, 0, 0, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0], [3, 3, 12, 6, 0, 0, 0, 0], arrival];
    for (index, word) in expected.concat().into_iter().enumerate() {
        let load = format!("(i64.load offset={} (local.get $events))", 8 * index);
        assert_eq!(observed(&load, &events), word, "word {index}");
    }
    for (index, word) in [3, 40, 4, 9, 50, 5].into_iter().enumerate() {
        let load = format!("(i64.load32_u offset={} (local.get $progress))", 4 * index);
        assert_eq!(observed(&load, &events), word, "number {index}");
    }
    let rest =
        "(i64.add (local.get $now) (i64.extend_i32_u (i32.add (local.get $budget) (i32.add (local.get $running_slots)
        (i32.add (local.get $free_blocks) (local.get $total_blocks))))))";
    assert_eq!(observed(rest, &events), 9_321);
    let lengths = "(i64.add (i64.mul (i64.const 100) (i64.extend_i32_u (local.get $events_len)))
        (i64.extend_i32_u (local.get $progress_len)))";
    assert_eq!(observed(lengths, &events), 4_006);
}

#[test]
fn every_kind_of_preference_is_understood() {
    let words = [0, 3, u64::MAX, 1, 3, 1 << 63, 2, 3, 512, 2, 4, u64::MAX];
    let expected = [
        Preference::AdmissionRank { slot: 3, rank: -1 },
        Preference::EvictionRank { slot: 3, rank: i64::MIN },
        Preference::ChunkCap { slot: 3, tokens: 512 },
        Preference::ChunkCap { slot: 4, tokens: NO_CHUNK_CAP },
    ];
    assert_eq!(answered(&words), Ok(expected.to_vec()));
    assert_eq!(answered(&[]), Ok(Vec::new()));
}

#[test]
fn a_preference_that_cannot_be_fails_and_is_named() {
    let absent = "none in that slot has arrived and not ended";
    let cases: &[(&[u64], &str)] = &[
        (&[0, 3], "it answered 2 words, but a preference has 3"),
        (&[3, 3, 0], "its preference 0, the words [3, 3, 0], has an unknown kind: expected 0 to 2"),
        (&[0, 2, 1], absent),
        (&[0, 5, 1], absent),
        (&[1, 1 << 40, 1], absent),
        (&[0, u64::MAX, 1], absent),
        (&[0, 3, 1, 1, 3, 1, 0, 3, 2], "its preference 2, the words [0, 3, 2], is the second of its kind"),
        (&[2, 3, 0], "the words [2, 3, 0], lets the request compute nothing: a chunk cap is at least 1"),
    ];
    for (words, expected) in cases {
        let error = answered(words).expect_err(expected);
        assert!(error.starts_with("scheduler policy `hostile` failed: in `decide`: "), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("; "), "no hint: {error}");
    }
}

#[test]
fn whatever_else_a_policy_does_ends_with_a_reason() {
    // Three requests are there, so nine preferences could be said.
    let huge = format!("(drop (memory.grow (i32.const 20))) {}", answer_list(1024, 40_000));
    let cases = [
        ("(loop (br 0)) (i32.const 0)".to_owned(), "it looped for ever"),
        ("(unreachable)".to_owned(), "it panicked"),
        ("(drop (memory.grow (i32.const 4000))) (i32.const 0)".to_owned(), "bytes of memory"),
        (answer_error(32), "`factor` is 0"),
        (huge, "its answer is larger than the 65752 bytes"),
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

/// Everything that an engine decides under `policy`, with too few blocks for
/// all.
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
