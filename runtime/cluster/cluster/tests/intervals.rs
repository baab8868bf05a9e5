//! Tests of the minimum number of passes between prefills of ranks: vLLM's `prefill_schedule_interval` and SGLang's
//! `prefill_decode_interval`. Calculated cases and random loads.

use std::collections::BTreeMap;

use crate::support::{MS, assert_conserved, config, linear, mix, recorded, run, synthetic};
use proptest::prelude::*;
use vcr_cluster::observe::{Observer, StepRecord, Unobserved};
use vcr_cluster::{Arrivals, DataParallel, PoolConfig, RunConfig, Topology, simulate};
use vcr_core::sglang::{SglangConfig, SglangConfigInput};
use vcr_core::{EngineConfig, EngineConfigInput, EngineKind};

#[derive(Clone, Copy, Debug)]
enum Scheduler {
    Vllm,
    Sglang,
}

fn ranked(scheduler: Scheduler, engines: u32, ranks: u32, interval: u32) -> PoolConfig {
    let engine: EngineKind = match scheduler {
        Scheduler::Vllm => EngineConfig::new(EngineConfigInput {
            num_gpu_blocks: 4000,
            max_num_batched_tokens: 4096,
            ..EngineConfigInput::default()
        })
        .expect("valid")
        .into(),
        Scheduler::Sglang => SglangConfig::new(SglangConfigInput {
            num_pages: 4000,
            prefill_decode_interval: interval,
            ..SglangConfigInput::default()
        })
        .expect("valid")
        .into(),
    };
    let prefill_schedule_interval = if matches!(scheduler, Scheduler::Vllm) { interval } else { 1 };
    PoolConfig {
        data_parallel: DataParallel { size: ranks, barrier: true },
        prefill_schedule_interval,
        ..PoolConfig::new("engines", engines, engine, linear())
    }
}

/// A pass of an engine: which kinds of work any rank has in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pass {
    prefills: bool,
    prefills_beside_decodes: bool,
    decodes: bool,
}

/// The passes of each engine, by engine and start time.
#[derive(Default)]
struct Passes {
    ranks: u32,
    seen: BTreeMap<(u32, u64), Pass>,
}

impl Observer for Passes {
    fn wants_steps(&self) -> bool {
        true
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        let pass = self.seen.entry((step.worker / self.ranks, step.start_ns)).or_default();
        let shape = &step.plan.shape;
        pass.prefills |= shape.prefill_requests > 0;
        pass.prefills_beside_decodes |= shape.prefill_requests > 0 && shape.decode_requests > 0;
        pass.decodes |= shape.decode_requests > 0;
    }
}

impl Passes {
    fn of(config: &RunConfig, ranks: u32) -> (vcr_cluster::Report, Vec<Vec<Pass>>) {
        let mut passes = Self { ranks, seen: BTreeMap::new() };
        let report = simulate(config.clone(), &mut passes).expect("it ends");
        let mut engines: Vec<Vec<Pass>> = Vec::new();
        for ((engine, _), pass) in passes.seen {
            engines.resize_with(engines.len().max(engine as usize + 1), Vec::new);
            engines[engine as usize].push(pass);
        }
        (report, engines)
    }
}

/// A run of a trace. Each row has an arrival in milliseconds, prompt tokens and output tokens.
fn of_rows(pool: PoolConfig, rows: &[(u64, u32, u32)]) -> RunConfig {
    let line = |(number, (at_ms, prompt, output)): (usize, &(u64, u32, u32))| {
        format!(
            r#"{{"timestamp": {at_ms}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{number}]}}"#
        )
    };
    let text = rows.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
    config(Topology::Aggregated(pool), vec![recorded("rows", &text)])
}

/// Long answers from the beginning, and short prompts that arrive while they decode.
const ROWS: [(u64, u32, u32); 5] = [(0, 100, 100), (0, 100, 100), (4, 100, 2), (4, 100, 2), (9, 100, 2)];

fn prefilling(config: &RunConfig) -> Vec<usize> {
    let (_, engines) = Passes::of(config, 2);
    (0..).zip(&engines[0]).filter(|(_, pass)| pass.prefills).map(|(number, _)| number).collect()
}

#[test]
fn ranks_of_vllm_prefill_in_passes_of_their_wave_that_are_multiples_of_the_interval() {
    // The first pass takes 3 ms and later ones 2 ms, so pass 1 begins at 3 ms, pass 2 at 5 ms and pass 4 at 9 ms.
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Vllm, 1, 2, 1), &ROWS)), [0, 2, 4]);
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Vllm, 1, 2, 4), &ROWS)), [0, 4]);
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Vllm, 1, 2, 7), &ROWS)), [0, 7]);
    // The interval does not apply to engines with a single rank.
    let alone = PoolConfig { data_parallel: DataParallel::default(), ..ranked(Scheduler::Vllm, 1, 2, 7) };
    assert!(run(&of_rows(alone, &ROWS)).requests[2].first_token_ns < Some(12 * MS));
}

#[test]
fn an_engine_of_one_rank_counts_its_own_steps() {
    let prefilling = |prefill_schedule_interval: u32| -> Vec<usize> {
        let input =
            EngineConfigInput { prefill_schedule_interval, num_gpu_blocks: 4000, ..EngineConfigInput::default() };
        let pool = PoolConfig::new("engines", 1, EngineConfig::new(input).expect("valid"), linear());
        let (_, engines) = Passes::of(&of_rows(pool, &ROWS), 1);
        (0..).zip(&engines[0]).filter(|(_, pass)| pass.prefills).map(|(number, _)| number).collect()
    };
    // One rank computes both first prompts, so step 1 begins when the other requests have arrived.
    assert_eq!(prefilling(1)[..2], [0, 1]);
    for interval in [3, 4, 7] {
        let found = prefilling(interval);
        assert!(found.len() > 1 && found[1] == interval as usize, "{interval}: {found:?}");
        assert!(found.windows(2).all(|pair| pair[1] - pair[0] >= interval as usize), "{interval}: {found:?}");
    }
}

#[test]
fn a_wave_of_vllms_ranks_begins_when_all_are_idle() {
    let rows = [(0, 100, 4), (0, 100, 4), (40, 100, 100), (40, 100, 100), (46, 100, 2)];
    // The first wave has four passes. The second wave prefills in its first pass, and the last request's prompt
    // five passes later.
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Vllm, 1, 2, 5), &rows)), [0, 4, 9]);
}

#[test]
fn ranks_without_decodes_prefill_at_once() {
    let rows = [(0, 100, 100), (4, 100, 2)];
    // The second request arrives at an idle rank.
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Vllm, 1, 2, 50), &rows)), [0, 2]);
}

#[test]
fn ranks_of_sglang_wait_for_passes_after_one_in_which_any_prefills() {
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Sglang, 1, 2, 0), &ROWS)), [0, 2, 4]);
    // Two decode passes follow each prefill. They also delay prefills on the idle rank.
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Sglang, 1, 2, 2), &ROWS)), [0, 3, 6]);
    let rows = [(0, 100, 100), (4, 100, 2)];
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Sglang, 1, 2, 8), &rows)), [0, 9]);
    // Without any decode, these passes take no time.
    let rows = [(0, 100, 1), (0, 100, 1), (4, 100, 1)];
    assert_eq!(prefilling(&of_rows(ranked(Scheduler::Sglang, 1, 2, 8), &rows)), [0, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Results do not depend on whether passes are grouped, nor on the number of threads. No pass prefills too
    /// early.
    #[test]
    fn passes_together_are_passes_one_by_one(
        is_vllm in any::<bool>(),
        shape in (1u32..3, 2u32..5, 1u32..12),
        load in (1u64..80, 0u64..400),
        seed in any::<u64>(),
    ) {
        let ((engines, ranks, interval), (count, over_ms)) = (shape, load);
        let scheduler = if is_vllm { Scheduler::Vllm } else { Scheduler::Sglang };
        let arrivals = Arrivals::Burst { count, over_ns: over_ms * MS };
        let workloads = vec![synthetic("burst", arrivals, mix(200.0, 30.0))];
        let topology = Topology::Aggregated(ranked(scheduler, engines, ranks, interval));
        let config = RunConfig { seed, ..config(topology, workloads) };
        let (watched, passes) = Passes::of(&config, ranks);
        assert_conserved(&watched);
        let together = simulate(config, &mut Unobserved).expect("it ends");
        prop_assert_eq!(&together.fingerprint, &watched.fingerprint);
        if !is_vllm {
            for passes in &passes {
                for (first, pass) in passes.iter().enumerate().filter(|(_, pass)| pass.prefills) {
                    let due = passes[first + 1..].iter().take(interval as usize);
                    // A pass that only prefills ends the wait.
                    let early = due.take_while(|pass| pass.decodes).find(|pass| pass.prefills);
                    prop_assert_eq!(early, None, "after pass {} {:?}", first, pass);
                }
            }
        }
    }
}
