//! Replays the Mooncake synthetic trace on four engines, parsing included.
//!
//! Workload: 3,993 requests over 1,022 s of virtual time, with 61.2 M prompt tokens and 595 k output tokens, on 4
//! engines with 16,384 blocks of 64 tokens each, round robin. Reported: simulated requests and output tokens per
//! second of wall time. The roofline model and a fitted model with noise run natively and as guests, without the
//! time to load the guest. `benches/peers/dynamo.sh` measures Dynamo on the same trace.

use std::sync::Arc;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use vcr_benches::{fitted_prices, guest_path, mooncake_path, replay};
use vcr_cluster::LatencyFactory;
use vcr_cluster::metrics::Counter;
use vcr_core::latency::LatencyError;
use vcr_guest::{GuestModule, Limits};
use vcr_latency::{Fitted, Polynomial, PolynomialInput, Roofline};
use vcr_roofline::RooflineConfig;

fn polynomial() -> LatencyFactory {
    let model = Polynomial::new(PolynomialInput::default()).expect("the defaults are valid");
    Arc::new(move |_seed| Ok(Box::new(model)))
}

fn native_roofline() -> LatencyFactory {
    let formulas = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm").build().expect("both presets exist");
    Arc::new(move |_seed| Ok(Box::new(Roofline::new(formulas))))
}

fn native_fitted() -> LatencyFactory {
    Arc::new(|plugin_context| Ok(Box::new(Fitted::new(fitted_prices(), plugin_context.seed))))
}

fn guest_fitted() -> Option<LatencyFactory> {
    guest("fitted", serde_json::json!({ "step": fitted_prices() }).to_string())
}

fn guest_roofline() -> Option<LatencyFactory> {
    guest("roofline", r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#.to_owned())
}

fn guest(name: &'static str, config: String) -> Option<LatencyFactory> {
    let module = GuestModule::load(guest_path(name)?, Limits::default()).expect("the guest loads");
    Some(Arc::new(move |plugin_context| {
        let model = module.latency_model(&config, plugin_context.seed);
        model.map_err(|error| LatencyError { model: name.to_owned(), reason: error.to_string() })
    }))
}

fn compare(group: &mut BenchmarkGroup<'_, WallTime>, latencies: &[(&str, LatencyFactory)]) {
    let Some(path) = mooncake_path() else { return };
    for (name, latency) in latencies {
        let report = replay(&path, Arc::clone(latency));
        let counters = [Counter::Completed, Counter::OutputTokens, Counter::Steps];
        let [requests, output_tokens, steps] = counters.map(|counter| report.metrics.count(counter));
        println!("{name}: {requests} requests, {output_tokens} output tokens, {steps} steps");
        for (unit, amount) in [("requests", requests), ("output tokens", output_tokens)] {
            group.throughput(Throughput::Elements(amount));
            group.bench_function(format!("{name}, {unit}"), |bencher| {
                bencher.iter(|| replay(&path, Arc::clone(latency)));
            });
        }
    }
}

fn mooncake(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mooncake_4_engines");
    group.sample_size(20);
    let mut latencies =
        vec![("polynomial", polynomial()), ("native roofline", native_roofline()), ("native fitted", native_fitted())];
    let guests = [("guest roofline", guest_roofline()), ("guest fitted", guest_fitted())];
    latencies.extend(guests.into_iter().filter_map(|(name, latency)| Some((name, latency?))));
    compare(&mut group, &latencies);
    group.finish();
}

criterion_group!(benches, mooncake);
criterion_main!(benches);
