use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::latest::{DecodeRun, LatencyInstance, PolicyInstance, Setup};
use crate::limits::Budget;
use vcr_core::latency::StepShape;
use vcr_core::policy::{EngineView, PolicyEvent, Preference};

/// Makes native instances, which can do what the sandbox prevents, such as share state.
struct Made<F>(F);

/// Computes a price from the instance's own step count and the length of the batch.
trait Price: Fn(u64, u64) -> f64 + Clone + Send + Sync + 'static {}
impl<F: Fn(u64, u64) -> f64 + Clone + Send + Sync + 'static> Price for F {}

struct Instance<F> {
    price: F,
    steps: u64,
}

impl<F: Price> Maker<dyn LatencyInstance> for Made<F> {
    fn configure(&self, _: Setup<'_>) -> Result<Box<dyn LatencyInstance>, CallFault> {
        Ok(Box::new(Instance { price: self.0.clone(), steps: 0 }))
    }
}

impl<F> Metered for Instance<F> {
    fn fuel_left(&self) -> u64 {
        1_000
    }

    fn memory_bytes(&self) -> usize {
        1 << 16
    }
}

impl<F: Price> LatencyInstance for Instance<F> {
    fn price_step(&mut self, _: u64, step: &StepShape, _: Budget) -> Result<f64, CallFault> {
        self.steps += 1;
        Ok((self.price)(self.steps, step.decode_tokens))
    }

    fn price_decodes(&mut self, run: DecodeRun<'_>, _: Budget) -> Result<Vec<f64>, CallFault> {
        let mut now_ns = run.start_ns;
        let mut durations_ns = Vec::new();
        for _ in run.kv_active_blocks {
            if !durations_ns.is_empty() && now_ns >= run.horizon_ns {
                break;
            }
            self.steps += 1;
            let duration_ns = (self.price)(self.steps, run.first.decode_tokens);
            durations_ns.push(duration_ns);
            now_ns += duration_ns.round() as u64;
        }
        Ok(durations_ns)
    }
}

fn examine(price: impl Price) -> Findings {
    let subject = Subject { limits: Limits::default(), config_json: "{}", seed: 7 };
    subject.examine::<latency::Pricing>(&Made(price), &|| 0)
}

#[track_caller]
fn broken(findings: &Findings, name: &str) -> String {
    let check = findings.checks.iter().find(|check| check.name == name).expect("the check was made");
    match &check.outcome {
        Outcome::Broken { reason } => reason.clone(),
        other => panic!("`{name}` came out as {other:?}"),
    }
}

#[test]
fn an_honest_model_passes_every_check() {
    let findings = examine(|steps, tokens| (steps % 7) as f64 + tokens as f64 * 0.5);
    assert!(findings.checks.iter().all(|check| check.outcome == Outcome::Passed), "{:?}", findings.checks);
    let names: Vec<&str> = findings.checks.iter().map(|check| check.name).collect();
    assert_eq!(names, ["answers", "repeated", "interleaved", "unstained", "split"]);
    let single = findings.calls.iter().find(|cost| cost.function == "price-step").expect("steps were priced alone");
    let listed = findings.calls.iter().find(|cost| cost.function == "price-decodes").expect("runs were priced");
    assert!(single.calls > 5_000 && listed.calls > 1_000, "{single:?} {listed:?}");
    assert!(listed.items > 5 * listed.calls, "runs are of many steps: {listed:?}");
}

#[test]
fn a_state_that_instances_share_is_found() {
    let shared = Arc::new(AtomicU64::new(0));
    let findings = examine(move |_, _| shared.fetch_add(1, Ordering::Relaxed) as f64);
    let reason = broken(&findings, "repeated");
    assert!(
        reason.starts_with("step 0 of the workload: answer 0 is ") && reason.ends_with(" was 0 ns before"),
        "{reason}"
    );
}

#[test]
fn a_state_that_only_shows_in_turns_is_found() {
    // The instances share which one was called last; a single instance does not notice.
    let last = Arc::new(AtomicU64::new(0));
    let findings = examine(move |steps, _| {
        let before = last.swap(steps, Ordering::Relaxed);
        if steps == 1 || before + 1 == steps { 5.0 } else { 6.0 }
    });
    broken(&findings, "interleaved");
    assert_eq!(findings.checks[1].outcome, Outcome::Passed);
}

#[test]
fn a_broken_answer_ends_the_checks() {
    let findings = examine(|steps, _| if steps == 400 { -1.0 } else { 1.0 });
    assert_eq!(findings.checks.len(), 1);
    let reason = broken(&findings, "answers");
    assert!(reason.contains("-1 ns, which is negative; a duration is a finite number"), "{reason}");
}

/// Ranks every request that arrives, even if it ends in the same call.
struct RanksArrivals;

impl Maker<dyn PolicyInstance> for RanksArrivals {
    fn configure(&self, _: Setup<'_>) -> Result<Box<dyn PolicyInstance>, CallFault> {
        Ok(Box::new(Self))
    }
}

impl Metered for RanksArrivals {
    fn fuel_left(&self) -> u64 {
        1_000
    }

    fn memory_bytes(&self) -> usize {
        1 << 16
    }
}

impl PolicyInstance for RanksArrivals {
    fn decide(
        &mut self,
        batch: &EngineView<'_>,
        preferences: &mut Vec<Preference>,
        _: Budget,
    ) -> Result<(), CallFault> {
        preferences.extend(batch.events.iter().filter_map(|event| match *event {
            PolicyEvent::Arrived { slot, .. } => Some(Preference::AdmissionRank { slot, rank: 0 }),
            _ => None,
        }));
        Ok(())
    }
}

#[test]
fn a_policy_that_ranks_requests_that_ended_in_the_same_call_is_found() {
    for seed in 0..20 {
        let subject = Subject { limits: Limits::default(), config_json: "{}", seed };
        let findings = subject.examine::<policy::Scheduling>(&RanksArrivals, &|| 0);
        let reason = broken(&findings, "answers");
        assert!(reason.contains("names no current request"), "{reason}");
    }
}
