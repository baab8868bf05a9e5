//! Prefill and decode engines that move real bytes.

use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::{Geometry, GeometryInput, HeadOrder, Plane, Regions};

use super::transfer::{prefill_only, with_kv};
use super::*;

pub(super) const MS: u64 = 1_000_000;

fn geometry(ranks: u32, block_tokens: u32) -> Geometry {
    let input = GeometryInput {
        layers: 2,
        kv_heads: 4,
        slice_bytes: 64,
        ranks,
        blocks: engine_config(EngineConfigInput::default()).num_gpu_blocks(),
        block_tokens,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    };
    Geometry::new(input).expect("the sizes fit")
}

pub(super) fn plane(ranks: u32, port: u16, is_pushed: bool) -> PlaneSettings {
    let patience = Duration::from_secs(2);
    let settings = TcpSettings { port, patience, connect_timeout: patience, ..TcpSettings::default() };
    PlaneSettings {
        factory: Arc::new(move |context| Ok(Box::new(TcpPlane::new(context, settings.clone())?) as Box<dyn Plane>)),
        geometry: geometry(ranks, 16),
        memory_limit_bytes: None,
        backs_as_used: false,
        time: TransferTime::SlowerOf,
        is_pushed,
        observer: None,
    }
}

/// An engine whose KV is moved as bytes.
pub(super) fn moving(name: &str, change: impl FnOnce(&mut LiveConfig)) -> Bench {
    let mut config = config();
    config.transfer.engine_id = name.to_owned();
    config.transfer.plane = Some(plane(2, 0, false));
    config.transfer.load_timeout_ns = 20_000 * MS;
    change(&mut config);
    Bench::new(config)
}

/// Computes a prompt on the prefill engine, and returns the parameters for the decode engine.
pub(super) fn compute(prefill: &Bench, id: &str, prompt: &[u32]) -> Value {
    prefill.send(with_kv(id, prompt, 1, prefill_only()));
    prefill.collect(&[id]).remove(0).outputs[0].kv_transfer_params.clone().expect("it is held")
}

pub(super) fn decode(bench: &Bench, id: &str, prompt: &[u32], params: Value) -> Collected {
    bench.send(with_kv(id, prompt, 3, params));
    bench.collect(&[id]).remove(0)
}

/// Number of prompt tokens that came from another engine.
pub(super) fn external(one: &Collected) -> u32 {
    let stats = one.outputs[0].prefill_stats.as_ref().expect("it is the first");
    stats.num_external_cached_tokens as u32
}

fn received_bytes(bench: &Bench) -> u64 {
    let snapshot = bench.handle().snapshots().remove(0);
    let totals = snapshot.plane.expect("bytes move").totals;
    totals.peers().map(|(_, peer)| peer.received_bytes).sum()
}

pub(super) fn is_whole(bench: &Bench) {
    bench.wait_for("its pool is whole", |snapshot| snapshot.num_held_prompts == 0 && snapshot.kv_cache_usage == 0.0);
}

#[test]
fn exactly_the_missing_blocks_move_and_are_freed() {
    for is_pushed in [false, true] {
        let prefill = moving("p", |config| config.transfer.plane = Some(plane(2, 0, is_pushed)));
        let decoder = moving("d", |_| ());
        let params = compute(&prefill, "p", &prompt(100));
        assert_eq!(params.get("transfer_mode"), Some(&if is_pushed { "push" } else { "pull" }.into()));
        let one = decode(&decoder, "d", &prompt(100), params);
        assert_eq!((one.finish, external(&one)), (Some(FinishReason::Length), 100));
        is_whole(&prefill);
        let block = geometry(2, 16).block_bytes();
        decoder.wait_for("the bytes are counted", |_| received_bytes(&decoder) == 7 * block);
        // The first four blocks are cached by now: 64 of the 100 tokens.
        let mut other = prompt(100);
        other[70] = 999;
        let params = compute(&prefill, "p2", &other);
        let one = decode(&decoder, "d2", &other, params);
        assert_eq!(external(&one), 36);
        decoder.wait_for("three more blocks moved", |_| received_bytes(&decoder) == 10 * block);
        is_whole(&prefill);
        is_whole(&decoder);
    }
}

#[test]
fn engines_of_other_ranks_share_pages_and_of_other_blocks_are_refused() {
    let prefill = moving("p", |config| config.transfer.plane = Some(plane(4, 0, false)));
    let decoder = moving("d", |config| config.transfer.plane = Some(plane(1, 0, false)));
    let one = decode(&decoder, "d", &prompt(100), compute(&prefill, "p", &prompt(100)));
    assert_eq!(external(&one), 100);
    is_whole(&prefill);
    let other = moving("o", |config| {
        let flat = PlaneSettings { geometry: geometry(2, 32), ..plane(2, 0, false) };
        config.transfer.plane = Some(flat);
    });
    let one = decode(&other, "o", &prompt(100), compute(&prefill, "p2", &prompt(100)));
    assert_eq!(one.finish, Some(FinishReason::Error));
    let error = one.outputs[0].error.as_ref().expect("it has a reason");
    assert_eq!(error.code, "kv_load_failed");
    assert!(error.message.contains("tokens of a block differ: 32 here, 16 at the peer"), "{}", error.message);
    is_whole(&other);
    is_whole(&prefill);
}

/// Each fault, with both policies.
#[test]
fn a_failed_load_is_an_error_or_is_computed_here() {
    for (fault, kind) in [("drop", "its time is over"), ("refuse", "refuses it"), ("corrupt", "is not that of")] {
        for policy in [LoadFailurePolicy::Fail, LoadFailurePolicy::Recompute] {
            let prefill = moving("p", |_| ());
            let decoder = moving("d", |config| {
                config.transfer.load_failure = policy;
                config.transfer.load_timeout_ns = 1_000 * MS;
                config.faults = vec![format!("kv-transfer:{fault},nth=2").parse().expect("it is a fault")];
            });
            let good = decode(&decoder, "d1", &prompt(50), compute(&prefill, "p1", &prompt(50)));
            assert_eq!(external(&good), 50, "only every second one fails");
            let one = decode(&decoder, "d2", &prompt(100)[50..], compute(&prefill, "p2", &prompt(100)[50..]));
            let counters = decoder.wait_for("it is counted", |it| it.counters.kv_loads_failed == 1).counters;
            match policy {
                LoadFailurePolicy::Fail => {
                    let error = one.outputs[0].error.as_ref().expect("it has a reason");
                    assert!(error.message.contains(kind), "{fault}: {}", error.message);
                    assert_eq!((one.finish, counters.kv_loads_recomputed), (Some(FinishReason::Error), 0));
                }
                LoadFailurePolicy::Recompute => {
                    assert_eq!((one.finish, external(&one)), (Some(FinishReason::Length), 0));
                    assert_eq!(counters.kv_loads_recomputed, 1);
                }
            }
            is_whole(&decoder);
            is_whole(&prefill);
        }
    }
}

#[test]
fn a_slow_transfer_takes_its_time() {
    let prefill = moving("p", |_| ());
    let decoder = moving("d", |config| {
        config.faults = vec!["kv-transfer:slow,by=300ms".parse().expect("it is a fault")];
    });
    let params = compute(&prefill, "p", &prompt(50));
    let began = Instant::now();
    assert_eq!(external(&decode(&decoder, "d", &prompt(50), params)), 50);
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[test]
fn aborts_on_both_sides_leave_nothing_behind() {
    let prefill = moving("p", |_| ());
    let decoder = moving("d", |config| config.transfer.latency_ns = 3_600_000 * MS);
    // The decode engine gives up, and the prefill engine must not wait for the lease.
    let params = compute(&prefill, "p1", &prompt(100));
    decoder.send(with_kv("d1", &prompt(100), 2, params));
    decoder.wait_for("it waits for its KV", |snapshot| snapshot.num_waiting == 1 && snapshot.kv_cache_usage > 0.0);
    decoder.send(Request::Abort(vec!["d1".to_owned()]));
    is_whole(&decoder);
    is_whole(&prefill);
    // A prefill engine that is asked to abort a finished prompt continues to hold it.
    let params = compute(&prefill, "p2", &prompt(80));
    prefill.send(Request::Abort(vec!["p2".to_owned()]));
    decoder.send(with_kv("d2", &prompt(80), 2, params));
    decoder.send(Request::Abort(vec!["d2".to_owned()]));
    is_whole(&decoder);
    is_whole(&prefill);
}

/// Aborts requests that wait, are computed, load, or decode.
#[test]
fn aborts_at_each_stage_leave_nothing_behind() {
    let one_at_a_time = |config: &mut LiveConfig| {
        config.latency = constant(50 * MS);
        config.engine = engine_config(EngineConfigInput { max_num_seqs: 1, ..EngineConfigInput::default() });
    };
    let abort = |bench: &Bench, id: &str| bench.send(Request::Abort(vec![id.to_owned()]));
    // An abort after a prompt has finished leaves the prompt held until its lease ends.
    let prefill = moving("p", |config| {
        one_at_a_time(config);
        config.transfer.lease_ns = 2_000 * MS;
    });
    prefill.add("busy", &[7; 28], 5);
    prefill.send(with_kv("waits", &prompt(100), 1, prefill_only()));
    abort(&prefill, "waits");
    prefill.collect_some(&["busy"]);
    prefill.send(with_kv("runs", &prompt(100), 1, prefill_only()));
    prefill.wait_for("it runs", |snapshot| snapshot.num_running == 1);
    abort(&prefill, "runs");
    is_whole(&prefill);

    let prefill = moving("p", |_| ());
    let decoder = moving("d", one_at_a_time);
    decoder.add("busy", &[7; 28], 1_000);
    decoder.wait_for("it runs", |snapshot| snapshot.num_running == 1);
    decoder.send(with_kv("waits", &prompt(100), 2, compute(&prefill, "p1", &prompt(100))));
    decoder.wait_for("it waits", |snapshot| snapshot.num_waiting == 1);
    abort(&decoder, "waits");
    is_whole(&prefill);
    abort(&decoder, "busy");
    decoder.send(with_kv("decodes", &prompt(80), 1_000, compute(&prefill, "p2", &prompt(80))));
    decoder.wait_for("it decodes", |snapshot| snapshot.num_running == 1);
    abort(&decoder, "decodes");
    is_whole(&decoder);
    is_whole(&prefill);

    let decoder = moving("d", |config| {
        config.faults = vec!["kv-transfer:slow,by=3600s".parse().expect("it is a fault")];
    });
    decoder.send(with_kv("loads", &prompt(60), 2, compute(&prefill, "p3", &prompt(60))));
    decoder.wait_for("its bytes are here", |_| received_bytes(&decoder) == 4 * geometry(2, 16).block_bytes());
    abort(&decoder, "loads");
    is_whole(&decoder);
    is_whole(&prefill);
}

/// After a restart at the same port, a prefill engine holds no prompts of its first run.
#[test]
fn a_prefill_engine_that_was_restarted_or_is_gone_fails_the_load_with_the_reason() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let start = || moving("p", |config| config.transfer.plane = Some(plane(2, port, false)));
    let decoder = moving("d", |_| ());
    let prefill = start();
    let (first, second) = (compute(&prefill, "p1", &prompt(100)), compute(&prefill, "p2", &prompt(60)));
    prefill.stop().expect("it ends well");
    let gone = decode(&decoder, "d1", &prompt(100), first);
    let message = |one: &Collected| one.outputs[0].error.as_ref().expect("it has a reason").message.clone();
    assert!(message(&gone).contains("cannot connect to KV peer"), "{}", message(&gone));
    let prefill = start();
    let restarted = decode(&decoder, "d2", &prompt(60), second);
    assert!(message(&restarted).contains("was restarted since it computed the prompt"), "{}", message(&restarted));
    let again = decode(&decoder, "d3", &prompt(60), compute(&prefill, "p3", &prompt(60)));
    assert_eq!(external(&again), 60);
    is_whole(&decoder);
    is_whole(&prefill);
}

#[test]
fn an_expired_lease_fails_the_load_and_a_late_notice_is_stray() {
    let prefill = moving("p", |config| config.transfer.lease_ns = 50 * MS);
    let decoder = moving("d", |_| ());
    let params = compute(&prefill, "p", &prompt(100));
    prefill.wait_for("the lease is over", |snapshot| snapshot.counters.leases_expired == 1);
    let late = decode(&decoder, "d", &prompt(100), params);
    let error = late.outputs[0].error.as_ref().expect("it has a reason");
    assert!(error.message.contains("prompt `p` is not held here: its lease has ended"), "{}", error.message);
    prefill.wait_for("the notice is counted", |snapshot| snapshot.counters.kv_notices_stray == 1);
    is_whole(&decoder);
    is_whole(&prefill);
}

/// The lease is shorter than the wait, but the decode engine's heartbeats extend it.
#[test]
fn heartbeats_keep_a_prompt_that_is_waited_for() {
    let lease_ns = 3_000 * MS;
    let prefill = moving("p", |config| config.transfer.lease_ns = lease_ns);
    let decoder = moving("d", |config| {
        config.transfer.lease_ns = lease_ns;
        // Nothing is admitted while another request runs.
        config.latency = constant(16 * MS);
        config.engine = engine_config(EngineConfigInput { max_num_seqs: 1, ..EngineConfigInput::default() });
    });
    let params = compute(&prefill, "p", &prompt(100));
    decoder.add("busy", &[7; 28], 250);
    decoder.wait_for("it runs", |snapshot| snapshot.num_running == 1);
    decoder.send(with_kv("d", &prompt(100), 2, params));
    let all = decoder.collect(&["busy", "d"]);
    assert_eq!((all[1].finish, external(&all[1])), (Some(FinishReason::Length), 100));
    let expired = prefill.wait_for("it is freed", |snapshot| snapshot.num_held_prompts == 0).counters.leases_expired;
    assert_eq!(expired, 0);
}

/// With modelled time, a request starts although its bytes never arrive.
#[test]
fn the_modelled_time_alone_can_decide() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = silent.local_addr().expect("it has one").port();
    let prefill = moving("p", |_| ());
    let decoder = moving("d", |config| {
        config.transfer.load_timeout_ns = 200 * MS;
        config.transfer.plane = Some(PlaneSettings { time: TransferTime::Modelled, ..plane(2, 0, false) });
    });
    let mut params = compute(&prefill, "p", &prompt(100));
    *params.get_mut("remote_port").expect("it has one") = u64::from(port).into();
    let one = decode(&decoder, "d", &prompt(100), params);
    assert_eq!((one.finish, external(&one)), (Some(FinishReason::Length), 100));
    decoder.wait_for("the bytes are missed", |snapshot| snapshot.counters.kv_loads_failed == 1);
    is_whole(&decoder);
}

#[test]
fn an_address_in_use_and_an_arena_that_is_too_large_end_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let start = |settings: PlaneSettings| {
        let mut config = config();
        config.identity.handshake_address = "tcp://127.0.0.1:1".to_owned();
        config.transfer.plane = Some(settings);
        match LiveEngines::start(config) {
            Ok(_) => panic!("it must not start"),
            Err(error) => error.to_string(),
        }
    };
    let port = taken.local_addr().expect("it has one").port();
    let message = start(plane(2, port, false));
    assert!(message.contains(&format!("cannot listen at 127.0.0.1:{port} for KV transfers")), "{message}");
    let message = start(PlaneSettings { memory_limit_bytes: Some(1 << 10), ..plane(2, 0, false) });
    assert!(message.contains("but this process may use 1024"), "{message}");
}

/// Random transfers, aborts, faults and restarts. Afterwards all blocks of both engines are free, and every request
/// has ended with a reason.
#[test]
fn a_storm_leaves_both_pools_whole() {
    storm(300, 7);
}

/// The size that is run before a release.
#[test]
#[ignore = "takes minutes; run with --run-ignored all"]
fn a_storm_of_twenty_thousand_transfers_leaves_both_pools_whole() {
    storm(20_000, 11);
}

fn storm(transfers: u32, seed: u64) {
    let mut state = seed;
    let mut draw = move |below: u64| {
        state = vcr_transfer::pattern::mix(state.wrapping_add(vcr_transfer::pattern::STEP));
        state % below
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let start = || {
        moving("p", |config| {
            config.transfer.plane = Some(plane(4, port, false));
            config.transfer.lease_ns = 2_000 * MS;
        })
    };
    let rules = ["drop,rate=0.01", "corrupt,rate=0.02", "refuse,rate=0.02", "slow,by=5ms,rate=0.1"];
    let decoders = [LoadFailurePolicy::Fail, LoadFailurePolicy::Recompute].map(|policy| {
        moving("d", |config| {
            config.transfer.load_failure = policy;
            config.transfer.load_timeout_ns = 200 * MS;
            config.faults =
                rules.iter().map(|rule| format!("kv-transfer:{rule}").parse().expect("it is a fault")).collect();
        })
    });
    let mut prefill = start();
    let mut number = 0;
    let mut ended = [0u32; 2];
    while number < transfers {
        let batch = 1 + draw(40) as u32;
        let ids: Vec<_> = (number..number + batch).map(|id| format!("p{id}")).collect();
        let prompts: Vec<Vec<u32>> = ids
            .iter()
            .map(|_| (0..1 + draw(120) as u32).map(|place| place + 1000 * draw(3) as u32 % 997).collect())
            .collect();
        for (id, prompt) in ids.iter().zip(&prompts) {
            prefill.send(with_kv(id, prompt, 1, prefill_only()));
        }
        let names: Vec<_> = ids.iter().map(String::as_str).collect();
        let computed = prefill.collect(&names);
        if draw(25) == 0 {
            // The prefill engine dies while it holds the prompts, and starts again.
            prefill.stop().expect("it ends well");
            prefill = start();
        }
        for (which, decoder) in decoders.iter().enumerate() {
            let mut waited = Vec::new();
            for (index, ((id, prompt), one)) in ids.iter().zip(&prompts).zip(&computed).enumerate() {
                if index % 2 != which {
                    continue;
                }
                let params = one.outputs[0].kv_transfer_params.clone().expect("it is held");
                decoder.send(with_kv(id, prompt, 1 + draw(3) as u32, params));
                if draw(6) == 0 {
                    decoder.send(Request::Abort(vec![id.clone()]));
                } else {
                    waited.push(id.as_str());
                }
            }
            let all = decoder.collect_some(&waited);
            assert!(all.iter().all(|one| one.finish.is_some()));
            ended[which] += waited.len() as u32;
        }
        number += batch;
    }
    assert!(ended[0] + ended[1] > transfers / 3, "{ended:?}");
    decoders.iter().for_each(is_whole);
    is_whole(&prefill);
    let snapshot = decoders[1].wait_for("some were recomputed", |_| true);
    assert!(snapshot.counters.kv_loads > 0);
}
