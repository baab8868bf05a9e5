//! A guest with a fault, which its config selects.
//!
//! The config is `{"wrong": "loop", "after": 3}`: three correct steps of 10 ms, then the fault,
//! which is `none` by default.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use vcr_guest_sdk::{Batch, LatencyGuest, StepShape, export_latency_model, kv_group_shapes, observe, serde};

/// Duration of a valid step.
const HONEST_NS: f64 = 10_000_000.0;

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(crate = "vcr_guest_sdk::serde", rename_all = "kebab-case")]
enum Wrong {
    None,
    Loop,
    Panic,
    Recurse,
    EightGigabytes,
    ManySmallGrowths,
    Flood,
    Chatter,
    NotANumber,
    Negative,
    Infinite,
    TooLong,
    ByCall,
    RejectConfig,
    LoopInConfig,
    PanicInConfig,
    /// No fault: a step costs a microsecond for each pair, and for each token of context in each group.
    Groups,
}

#[derive(serde::Deserialize)]
#[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
struct Config {
    wrong: Wrong,
    #[serde(default)]
    after: u64,
}

struct Hostile {
    wrong: Wrong,
    honest_steps_left: u64,
    calls: u64,
}

impl LatencyGuest for Hostile {
    type Config = Config;

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        match config.wrong {
            Wrong::RejectConfig => return Err("`wrong` is \"reject-config\", so it is rejected".to_string()),
            Wrong::LoopInConfig => loop_for_ever(),
            Wrong::PanicInConfig => panic!("as asked"),
            _ => {}
        }
        Ok(Self { wrong: config.wrong, honest_steps_left: config.after, calls: 0 })
    }

    fn price(&mut self, start_ns: u64, _step: &StepShape) -> f64 {
        if self.honest_steps_left > 0 {
            self.honest_steps_left -= 1;
            return HONEST_NS;
        }
        match self.wrong {
            Wrong::Loop => loop_for_ever(),
            Wrong::Panic => panic!("as asked"),
            Wrong::Recurse => recurse(start_ns) as f64,
            Wrong::EightGigabytes => grow(),
            Wrong::ManySmallGrowths => hoard(),
            Wrong::Flood => flood(),
            Wrong::Chatter => chatter(),
            Wrong::NotANumber => f64::NAN,
            Wrong::Negative => -1.0,
            Wrong::Infinite => f64::INFINITY,
            Wrong::TooLong => 2e18,
            Wrong::Groups => {
                let groups = kv_group_shapes();
                groups
                    .iter()
                    .map(|shape| (shape.prefill_attention_pairs + shape.decode_context_tokens) as f64)
                    .sum::<f64>()
                    * 1_000.0
            }
            // With this fault, a step takes longer in a call of its own than in a list.
            Wrong::ByCall => HONEST_NS + self.calls as f64,
            _ => HONEST_NS,
        }
    }

    fn price_batch(&mut self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
        self.calls += 1;
        batch.price_each(durations_ns, |start_ns, step| Ok(self.price(start_ns, step)))
    }
}

fn loop_for_ever() -> ! {
    loop {
        core::hint::black_box(());
    }
}

#[expect(unconditional_recursion, reason = "that is what is wrong with it")]
fn recurse(depth: u64) -> u64 {
    core::hint::black_box(recurse(depth + 1) + 1)
}

fn grow() -> f64 {
    // 8 GiB are 131,072 pages of 64 KiB.
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::memory_grow(0, 131_072);
    HONEST_NS
}

/// Allocates more and more memory, in small pieces.
fn hoard() -> f64 {
    let mut kept: Vec<Vec<u64>> = Vec::new();
    loop {
        kept.push(Vec::with_capacity(512));
        core::hint::black_box(&kept);
    }
}

/// Sends more telemetry in one call than allowed.
fn flood() -> f64 {
    for _ in 0..1_000_000 {
        observe::count("floods", 1);
    }
    HONEST_NS
}

/// Sends more telemetry in the life of an instance than allowed: four lines a step, as many as a call may send for
/// about 256 steps. Its prices are correct.
fn chatter() -> f64 {
    let text = "blah ".repeat(2_000);
    for _ in 0..4 {
        observe::log(&text);
    }
    HONEST_NS
}

export_latency_model!(Hostile);
