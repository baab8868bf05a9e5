//! Compares the reasons inferred for vLLM's steps with the reasons that vcr's engine states for the same steps.

use std::path::Path;

use vcr_steplog::conform::{cases, replay_lines};
use vcr_steplog::explain::{Source, admission};
use vcr_steplog::{StepLog, Steps};

/// The reasons inferred from the recorded line and the settings must include the reason that vcr's engine states,
/// and must rarely be ambiguous.
#[test]
fn inferred_reasons_include_the_true_one() {
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/recordings");
    let (mut inferred, mut vague) = (0, 0);
    for group in ["vllm-scheduler", "random-0.32", "random-0.33"] {
        for case in cases(&recordings.join(group)).expect("there are recordings") {
            let log = StepLog::read(&case).expect("a recording is a log");
            let steps = Steps::of(&log);
            let replayed = replay_lines(&case).expect("a recording can be replayed");
            let lines = replayed.map(|line| line.expect("every line can be replayed"));
            let schedules = lines.filter(|line| line.ours.s.is_some());
            for (step, line) in steps.steps.iter().zip(schedules) {
                let place = format!("{}, step {}", case.display(), step.number);
                assert_eq!(step.num_running, line.ours.run.map_or(0, |run| run.len() as u64), "{place}");
                let found = admission(&steps, step);
                let Some(truth) = line.ours.why else {
                    assert!(found.stops.is_empty(), "{place}: no request waits, but {found}");
                    continue;
                };
                assert_eq!(found.source, Source::Settings, "{place}");
                let word = if truth == "stepped over" { "adapters" } else { &truth };
                assert!(found.stops.iter().any(|stop| stop == word), "{place}: {truth} is not in {found}");
                inferred += 1;
                vague += u64::from(found.stops.len() > 1);
            }
        }
    }
    assert!(inferred > 25_000, "only {inferred} steps were looked at");
    assert!(vague * 4 < inferred, "{vague} of {inferred} reasons are vague");
}
