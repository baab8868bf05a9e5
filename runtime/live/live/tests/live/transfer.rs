//! Prefill on one engine, decode on another.

use super::*;

pub(super) fn with_kv(id: &str, prompt: &[u32], max_tokens: u32, kv: Value) -> Request {
    let extra_args = Some(Value::Map(vec![("kv_transfer_params".into(), kv)]));
    Request::Add(Box::new(request(id, prompt, SamplingParams { extra_args, ..params(max_tokens) })))
}

fn map(pairs: &[(&str, Value)]) -> Value {
    Value::Map(pairs.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
}

pub(super) fn prefill_only() -> Value {
    map(&[("do_remote_decode", true.into()), ("do_remote_prefill", false.into())])
}

/// A port that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("there is one").port()
}

fn prefill_engine(lease_ns: u64) -> Bench {
    let mut config = config();
    config.transfer.side_channel_port = free_port();
    config.transfer.lease_ns = lease_ns;
    Bench::new(config)
}

#[test]
fn a_prompt_is_computed_here_and_decoded_there() {
    let prefill = prefill_engine(60_000_000_000);
    prefill.send(with_kv("p", &prompt(100), 1, prefill_only()));
    let computed = prefill.collect(&["p"]).remove(0);
    let params = computed.outputs[0].kv_transfer_params.clone().expect("it finished by length");
    assert_eq!(params.get("do_remote_prefill"), Some(&true.into()));
    assert_eq!(params.get("remote_request_id"), Some(&"p".into()));
    let blocks = params.get("remote_block_ids").and_then(Value::as_array).expect("one list a group");
    assert_eq!(blocks[0].as_array().map(<[Value]>::len), Some(7), "100 tokens are 7 blocks of 16");
    assert_eq!(params.get("remote_registration_generation"), Some(&0u64.into()), "0.33 has it");
    let held = prefill.wait_for("it is held", |snapshot| snapshot.num_held_prompts == 1);
    assert!(held.kv_cache_usage > 0.0);

    let mut decode = config();
    decode.transfer.latency_ns = 20_000_000;
    let decode = Bench::new(decode);
    decode.send(with_kv("d", &prompt(100), 5, params));
    let decoded = decode.collect(&["d"]).remove(0);
    assert_eq!((decoded.tokens.len(), decoded.finish), (5, Some(FinishReason::Length)));
    assert_eq!(decoded.tokens[0], computed.tokens[0], "the same content gives the same text");
    let stats = decoded.outputs[0].prefill_stats.as_ref().expect("it is the first");
    assert_eq!((stats.num_external_cached_tokens, stats.num_cached_tokens), (100, 100));
    let freed = prefill.wait_for("the decode engine has said so", |snapshot| snapshot.num_held_prompts == 0);
    assert_eq!((freed.kv_cache_usage, freed.counters.leases_expired), (0.0, 0));
}

#[test]
fn blocks_that_nobody_fetches_are_freed_in_the_end() {
    let prefill = prefill_engine(50_000_000);
    prefill.send(with_kv("p", &prompt(100), 1, prefill_only()));
    prefill.collect(&["p"]);
    let freed = prefill.wait_for("the lease is over", |snapshot| snapshot.counters.leases_expired == 1);
    assert_eq!((freed.num_held_prompts, freed.kv_cache_usage), (0, 0.0));
}

#[test]
fn without_the_keys_the_prompt_is_computed_here() {
    let bench = Bench::new(config());
    bench.send(with_kv("d", &prompt(100), 2, map(&[("do_remote_prefill", true.into())])));
    let one = bench.collect(&["d"]).remove(0);
    let stats = one.outputs[0].prefill_stats.as_ref().expect("it is the first");
    assert_eq!((stats.num_external_cached_tokens, stats.num_computed_tokens), (0, 100));
}

pub(super) fn remote(port: u16, id: &str) -> Value {
    remote_at("127.0.0.1", port, id)
}

fn remote_at(host: &str, port: u16, id: &str) -> Value {
    map(&[
        ("do_remote_prefill", true.into()),
        ("remote_engine_id", "x".into()),
        ("remote_request_id", id.into()),
        ("remote_host", host.into()),
        ("remote_port", u64::from(port).into()),
        ("remote_block_ids", Value::Array(vec![Value::Array(vec![])])),
    ])
}

/// A router that gives up sends a notice, and the prefill engine does not wait for the lease.
#[test]
fn an_abort_lets_the_prefill_engine_go() {
    let port = free_port();
    let board = NoticeBoard::bind(&Transport::new(), &format!("tcp://127.0.0.1:{port}")).expect("it is free");
    let mut slow = config();
    slow.transfer.latency_ns = 3_600_000_000_000;
    let bench = Bench::new(slow);
    bench.send(with_kv("during", &prompt(100), 2, remote(port, "one")));
    bench.wait_for("it waits for its KV", |snapshot| snapshot.num_waiting == 1 && snapshot.kv_cache_usage > 0.0);
    bench.send(Request::Abort(vec!["during".to_owned()]));
    bench.wait_for("its blocks are free", |snapshot| snapshot.num_waiting == 0 && snapshot.kv_cache_usage == 0.0);
    let mut at_once = match with_kv("at once", &prompt(100), 2, remote(port, "two")) {
        Request::Add(request) => request,
        _ => unreachable!(),
    };
    at_once.abort_immediately = true;
    bench.send(Request::Add(at_once));
    let mut notified = Vec::new();
    let end = Instant::now() + PATIENCE;
    while notified.len() < 2 && Instant::now() < end {
        notified.extend(board.try_receive().expect("it works"));
        std::thread::sleep(Duration::from_millis(2));
    }
    notified.sort();
    assert_eq!(notified, ["one", "two"]);
    assert_eq!(bench.run("next", &prompt(10), 2).len(), 2);
}

/// A request must not make an engine connect to hosts that its operator did not allow, such as metadata services.
#[test]
fn a_peer_that_is_not_allowed_is_a_miss() {
    let run = |config: LiveConfig| {
        let bench = Bench::new(config);
        let one = |id, host| {
            bench.send(with_kv(id, &prompt(100), 2, remote_at(host, 1, "x")));
            bench.collect(&[id]).remove(0).outputs.remove(0).prefill_stats.expect("it is the first")
        };
        let link_local = one("a", "169.254.169.254").num_external_cached_tokens;
        let documentation = one("b", "192.0.2.1").num_external_cached_tokens;
        let refused = bench.wait_for("both are known", |snapshot| snapshot.counters.requests == 2);
        (link_local, documentation, refused.counters.remote_kv_refused)
    };
    assert_eq!(run(config()), (0, 0, 2));
    let mut allows = config();
    allows.transfer.allowed_peers = vec!["192.0.2.0/24".parse().expect("it is a network")];
    allows.engine = engine_config(EngineConfigInput { enable_prefix_caching: false, ..EngineConfigInput::default() });
    assert_eq!(run(allows), (0, 100, 1));
}

/// A ZeroMQ context has 1,023 sockets, and each peer takes one.
#[test]
fn connections_to_peers_do_not_run_out() {
    let port = free_port();
    let board = NoticeBoard::bind(&Transport::new(), &format!("tcp://0.0.0.0:{port}")).expect("it is free");
    let bench = Bench::new(config());
    let mut received = 0;
    for peer in 0..1200 {
        let (id, host) = (format!("r{peer}"), format!("127.0.{}.{}", 1 + peer / 100, 1 + peer % 100));
        bench.send(with_kv(&id, &prompt(20), 1, remote_at(&host, port, &id)));
        bench.collect(&[&id]);
        let end = Instant::now() + PATIENCE;
        while board.try_receive().expect("it works").is_none() {
            assert!(Instant::now() < end, "the notice to {host} is missing after {received}");
            std::thread::sleep(Duration::from_millis(1));
        }
        received += 1;
    }
    assert_eq!(received, 1200);
}

/// The prefill engine's own requests continue. The router gets no parameters, and an error is logged.
#[test]
fn a_side_channel_in_use_holds_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let mut config = config();
    config.transfer.side_channel_port = taken.local_addr().expect("it has one").port();
    let bench = Bench::new(config);
    bench.send(with_kv("p", &prompt(100), 1, prefill_only()));
    let computed = bench.collect(&["p"]).remove(0);
    assert_eq!((computed.finish, &computed.outputs[0].kv_transfer_params), (Some(FinishReason::Length), &None));
    bench.wait_for("nothing is held", |snapshot| snapshot.num_held_prompts == 0 && snapshot.kv_cache_usage == 0.0);
    assert_eq!(bench.run("next", &prompt(10), 2).len(), 2);
}
