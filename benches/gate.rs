//! Measures a decision: both sides are read on one thread each, joined, judged on two threads, and explained. An
//! observation has eight token IDs and eight events. The candidate is slower only by noise.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use vcr_gate::{Decision, GateOptions, Input, JoinBy, MirrorOptions, Policy, Source};

fn write_side(path: &Path, requests: u64, seed: u64) {
    let mut file = BufWriter::new(File::create(path).expect("it is writable"));
    let mut state = seed;
    for index in 0..requests {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first_ns = 40_000_000 + (state >> 40);
        let events: Vec<u64> = (0..8).map(|event| first_ns + event * (10_000_000 + (state >> 50))).collect();
        let ids: Vec<u64> = (0..8).map(|token| (index * 31 + token * 7) % 128_000).collect();
        writeln!(
            file,
            r#"{{"observation":1,"request_id":"request-{index:08}","ok":true,"latency_ns":{},"event_ns":{events:?},"token_ids":{ids:?},"model":"llama-3.1-8b","backend":"vllm","backend_version":"0.33.0","accelerator":"h100","tenant":"tenant-{}","route":"pool-{}","provenance":"shadow traffic"}}"#,
            events[7] + 1_000_000,
            index % 2,
            index % 3,
        )
        .expect("it is writable");
    }
    file.flush().expect("it is writable");
}

fn decide(folder: &Path) -> Decision {
    let [before, after] =
        ["before.jsonl", "after.jsonl"].map(|name| vec![Input { path: folder.join(name), run: None }]);
    let (policy, read) = (Policy::default(), MirrorOptions::default());
    let (baseline, candidate) = std::thread::scope(|scope| {
        let other = scope.spawn(|| vcr_gate::load(&after, &read));
        (vcr_gate::load(&before, &read), other.join().expect("it ends"))
    });
    let ((baseline, _), (candidate, _)) = (baseline.expect("it is valid"), candidate.expect("it is valid"));
    let options = GateOptions { join: JoinBy::Auto, threads: NonZeroUsize::new(2).expect("not zero") };
    let judgement = vcr_gate::judge(&policy, &baseline, &candidate, &options).expect("they can be joined");
    let source = |side, inputs| Source { side, inputs, options: &read };
    vcr_gate::triage(&policy, &judgement, source(&baseline, &before), source(&candidate, &after)).expect("it is read");
    judgement.decision
}

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate");
    group.sample_size(10);
    for requests in [10_000, 1_000_000] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_side(&folder.path().join("before.jsonl"), requests, 1);
        write_side(&folder.path().join("after.jsonl"), requests, 2);
        group.bench_function(requests.to_string(), |bencher| bencher.iter(|| decide(folder.path())));
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
