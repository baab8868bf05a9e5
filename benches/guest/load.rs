//! Prepares guests: loads one, instantiates it, and instantiates many at once.
//!
//! Workload: the shipped guest `roofline`, from `guests/dist`. Reported: the time to load it with compilation and
//! with its compiled form cached; the time to make a configured instance; and the memory of 1,000 instances in one
//! process. Times are the best of several rounds, except for compilation.

use std::path::Path;
use std::time::{Duration, Instant};

use vcr_benches::guest_path;
use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_guest::{GuestModule, Limits};

const ROUNDS: usize = 50;
const INSTANCES: usize = 1000;
const CONFIG: &str = r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#;

fn main() {
    let Some(path) = guest_path("roofline") else { return };
    let bytes = std::fs::read(&path).expect("the guest can be read");
    // The engine is created once per process, so its creation is not measured.
    let warm = GuestModule::load(&path, Limits::default()).expect("it loads, and is kept from now on");
    let compiled = timed(|| GuestModule::from_bytes("roofline", &bytes, Limits::default()).expect("it loads"));
    println!("load, compiled            {:>10.2} ms", millis(compiled));
    println!("load, from the cache      {:>10.2} ms", millis(best(|| load(&path))));
    let instance = best(|| warm.latency_model(CONFIG, 1).expect("it configures"));
    println!("instantiate and configure {:>10.1} us", millis(instance) * 1e3);
    many(&warm);
}

fn load(path: &Path) -> GuestModule {
    GuestModule::load(path, Limits::default()).expect("it loads")
}

/// Makes many isolated instances, each of which calculates the time of a step.
fn many(module: &GuestModule) {
    let (resident_before, mapped_before) = (status_bytes("VmRSS:"), status_bytes("VmSize:"));
    let mut models: Vec<Box<dyn LatencyModel>> = Vec::with_capacity(INSTANCES);
    let shapes = [StepShape { decode_requests: 1, decode_tokens: 1, sampled_requests: 1, ..StepShape::default() }];
    let mut durations_ns = Vec::new();
    for seed in 0..INSTANCES as u64 {
        let mut model = module.latency_model(CONFIG, seed).expect("it configures");
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
        model.price(&batch, &mut durations_ns).expect("it prices");
        models.push(model);
    }
    let resident = status_bytes("VmRSS:").saturating_sub(resident_before);
    let mapped = status_bytes("VmSize:").saturating_sub(mapped_before);
    println!("{INSTANCES} instances            {:>10.1} MB resident", resident as f64 / 1e6);
    println!("                          {:>10.1} GB of address space", mapped as f64 / 1e9);
    drop(models);
}

fn timed<T>(body: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    let made = body();
    let elapsed = started.elapsed();
    drop(made);
    elapsed
}

fn best<T>(mut body: impl FnMut() -> T) -> Duration {
    (0..ROUNDS).map(|_| timed(&mut body)).min().unwrap_or_default()
}

/// A value of `/proc/self/status`, in bytes.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

fn millis(elapsed: Duration) -> f64 {
    elapsed.as_secs_f64() * 1e3
}
