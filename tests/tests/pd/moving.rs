//! KV that moves over TCP between two processes, with their HTTP servers and metrics.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vcr_tests::{Folder, Reply, Serve, free_port, wait_until};

/// Two layers and four KV heads of sixteen numbers: pages are few and small.
const SHAPE: &str = "2x4x16";
/// K and V of 16 tokens, with two bytes per number.
const BLOCK_BYTES: f64 = (2 * 2 * 4 * 16 * 16 * 2) as f64;
const PROMPT_BLOCKS: f64 = 4.0;

/// A server whose KV moves, and the metrics address of its engine.
pub(crate) struct Moving {
    pub(crate) serve: Serve,
    metrics: String,
}

impl Moving {
    fn start(args: &[&str]) -> Self {
        Self::with_shape(SHAPE, args)
    }

    pub(crate) fn with_shape(shape: &str, args: &[&str]) -> Self {
        Self::by(&["--kv-transfer", "tcp"], shape, args)
    }

    /// Like `start`, with the options for a data plane.
    pub(crate) fn by(plane: &[&str], shape: &str, args: &[&str]) -> Self {
        let (port, metrics) = (free_port().to_string(), format!("127.0.0.1:{}", free_port()));
        let common = [plane, &["--side-channel-port", &port, "--metrics-address", &metrics]].concat();
        let sizes = ["--kv-shape", shape, "--num-gpu-blocks", "400", "--block-size", "16"];
        Self { serve: Serve::start(&[&common[..], &sizes, args].concat()), metrics }
    }

    /// The sum of an engine's metric over all series with `labels`.
    fn metric_of(&self, name: &str, labels: &str) -> f64 {
        let answer = ureq::get(format!("http://{}/metrics", self.metrics)).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(labels));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.metric_of(name, "")
    }

    #[track_caller]
    pub(crate) fn wait_for_metric(&self, name: &str, value: f64) {
        wait_until(&format!("{name} is {value}"), || self.metric(name) == value);
    }

    /// The sum of one of the server's own vLLM metrics.
    fn served_metric(&self, name: &str) -> f64 {
        let answer = ureq::get(format!("http://{}/metrics", self.serve.address())).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        let lines = text.lines().filter(|line| line.starts_with(&format!("vllm:{name}{{")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    #[track_caller]
    fn wait_for_served_metric(&self, name: &str, value: f64) {
        wait_until(&format!("{name} is {value}, not {}", self.served_metric(name)), || {
            self.served_metric(name) == value
        });
    }

    pub(crate) fn complete(&self, prompt: &[u32], max_tokens: u32, params: &Value) -> Reply {
        let body =
            json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "kv_transfer_params": params});
        self.serve.post("/v1/completions", &body)
    }

    /// Has a prompt computed, and returns the parameters for the decode engine.
    #[track_caller]
    pub(crate) fn compute(&self, prompt: &[u32]) -> Value {
        let answer = self.complete(prompt, 1, &json!({"do_remote_decode": true, "do_remote_prefill": false}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let params = &answer.body["kv_transfer_params"];
        assert_eq!(params["do_remote_prefill"], true, "{}", answer.body);
        params.clone()
    }

    #[track_caller]
    pub(crate) fn is_whole(&self) {
        self.wait_for_metric("vcr_prompts_held", 0.0);
        self.wait_for_metric("vcr_kv_cache_usage_ratio", 0.0);
    }
}

/// Four blocks of tokens that no other number has.
pub(crate) fn prompt(number: u32) -> Vec<u32> {
    (0..64).map(|place| 100 + number * 64 + place).collect()
}

pub(crate) fn completion_tokens(answer: &Reply) -> Option<u64> {
    answer.body["usage"]["completion_tokens"].as_u64()
}

#[test]
fn bytes_of_a_prompt_arrive_and_are_counted_at_both_ends() {
    for mode in ["pull", "push"] {
        let prefill = Moving::start(&["--kv-transfer-mode", mode, "--engine-id", "p"]);
        let decode = Moving::start(&["--kv-transfer-mode", mode, "--engine-id", "d", "--log-requests"]);
        let params = prefill.compute(&prompt(0));
        assert_eq!(params["transfer_mode"], mode, "{params}");
        let answer = decode.complete(&prompt(0), 5, &params);
        assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
        let bytes = PROMPT_BLOCKS * BLOCK_BYTES;
        decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", bytes);
        prefill.wait_for_metric("vcr_kv_transfer_sent_bytes_total", bytes);
        // There is a region for K and one for V of both layers.
        assert_eq!(decode.metric("vcr_kv_transfer_pages_received_total"), PROMPT_BLOCKS * 4.0);
        let line = decode.serve.wait_for("KV arrived");
        for part in ["peer=127.0.0.1:", "bytes=32768 ", "pages=16 ", "queue_ms=", "connect_ms=", "move_ms="] {
            assert!(line.contains(part), "no `{part}` in {line}");
        }
        // The side that moves the pages measures the time.
        let mover = if mode == "pull" { &decode } else { &prefill };
        mover.wait_for_metric("vcr_kv_transfers_total", 1.0);
        assert!(mover.metric_of("vcr_kv_transfer_time_seconds_total", "move") > 0.0);
        for engine in [&prefill, &decode] {
            engine.is_whole();
            assert_eq!(engine.metric("vcr_kv_transfer_failures_total"), 0.0);
            assert!(!engine.serve.log().contains("WARN"), "{}", engine.serve.log());
        }
        // The second time, the prompt is in the cache, except for its last block: as in vLLM, a hit leaves one
        // token to compute.
        let answer = decode.complete(&prompt(0), 5, &prefill.compute(&prompt(0)));
        assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
        prefill.is_whole();
        decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", bytes + BLOCK_BYTES);
    }
}

/// The metrics on vLLM's own dashboards.
#[test]
fn transfers_and_leases_are_in_the_metrics_of_vllm() {
    let prefill = Moving::start(&["--kv-lease", "1s"]);
    let decode = Moving::start(&["--fault", "kv-transfer:refuse,nth=2", "--kv-load-failure-policy", "recompute"]);
    let answer = decode.complete(&prompt(0), 5, &prefill.compute(&prompt(0)));
    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
    // The decode engine gets the whole prompt from elsewhere. The prefill engine looks for KV elsewhere too, but
    // finds none.
    decode.wait_for_served_metric("external_prefix_cache_queries_total", 64.0);
    decode.wait_for_served_metric("external_prefix_cache_hits_total", 64.0);
    decode.wait_for_served_metric("prefix_cache_queries_total", 64.0);
    assert_eq!(decode.served_metric("prefix_cache_hits_total"), 0.0);
    prefill.wait_for_served_metric("external_prefix_cache_queries_total", 64.0);
    assert_eq!(prefill.served_metric("external_prefix_cache_hits_total"), 0.0);
    decode.wait_for_served_metric("nixl_bytes_transferred_sum", PROMPT_BLOCKS * BLOCK_BYTES);
    for name in ["xfer_time_seconds", "post_time_seconds", "bytes_transferred", "num_descriptors"] {
        assert_eq!(decode.served_metric(&format!("nixl_{name}_count")), 1.0, "{name}");
    }
    assert_eq!(decode.served_metric("nixl_num_failed_transfers_total"), 0.0);
    let answer = decode.complete(&prompt(1), 5, &prefill.compute(&prompt(1)));
    assert_eq!(answer.status, 200, "{}", answer.body);
    decode.wait_for_served_metric("nixl_num_failed_transfers_total", 1.0);
    assert_eq!(decode.served_metric("nixl_xfer_time_seconds_count"), 1.0);
    // Nobody fetches the prompt, and the engine has nothing else to do.
    assert_eq!(prefill.served_metric("nixl_num_kv_expired_reqs_total"), 0.0);
    prefill.compute(&prompt(2));
    prefill.wait_for_served_metric("nixl_num_kv_expired_reqs_total", 1.0);
}

/// Engines without a data plane count KV from other engines only if a request asks for it.
#[test]
fn modelled_transfers_count_what_other_engines_have() {
    let start = |port: u16| Serve::start(&["--side-channel-port", &port.to_string(), "--kv-lease", "1s"]);
    let (prefill, decode) = (start(free_port()), start(free_port()));
    let engine = |serve| Moving { serve, metrics: String::new() };
    let (prefill, decode) = (engine(prefill), engine(decode));
    let answer = decode.complete(&prompt(0), 5, &prefill.compute(&prompt(0)));
    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
    decode.wait_for_served_metric("external_prefix_cache_hits_total", 64.0);
    assert_eq!(decode.served_metric("external_prefix_cache_queries_total"), 64.0);
    assert_eq!(decode.complete(&prompt(1), 5, &json!(null)).status, 200);
    assert_eq!(decode.served_metric("external_prefix_cache_queries_total"), 64.0);
    prefill.compute(&prompt(2));
    prefill.wait_for_served_metric("nixl_num_kv_expired_reqs_total", 1.0);
}

/// The default number of blocks would take 32 GiB, but only blocks whose KV moves take memory.
#[test]
fn kv_takes_memory_only_where_it_moves() {
    let start = || {
        let port = free_port().to_string();
        Serve::start(&["--kv-transfer", "tcp", "--side-channel-port", &port])
    };
    let engine = |serve| Moving { serve, metrics: String::new() };
    let (prefill, decode) = (engine(start()), engine(start()));
    let answer = decode.complete(&prompt(0), 2, &prefill.compute(&prompt(0)));
    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(2)), "{}", answer.body);
    for engine in [&prefill, &decode] {
        assert!(engine.serve.peak_memory_bytes() < 1 << 30, "{}", engine.serve.peak_memory_bytes());
    }
}

/// Each fault with each policy. The first transfer succeeds, the second fails.
#[test]
fn faults_of_each_kind_fail_or_are_recomputed() {
    let faults = [("drop", "timed_out"), ("corrupt", "corrupt"), ("refuse", "refused")];
    let prefill = Moving::start(&[]);
    for (number, (fault, kind)) in (0..).zip(faults) {
        for policy in ["fail", "recompute"] {
            let rule = format!("kv-transfer:{fault},nth=2");
            let more = ["--fault", &rule, "--kv-load-failure-policy", policy, "--kv-transfer-timeout", "1s"];
            let decode = Moving::start(&more);
            for which in 0..2 {
                let prompt = prompt(2 * number + which);
                let answer = decode.complete(&prompt, 3, &prefill.compute(&prompt));
                if which == 1 && policy == "fail" {
                    assert_eq!(answer.status, 503, "{fault}: {}", answer.body);
                } else {
                    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(3)), "{fault}: {}", answer.body);
                }
            }
            decode.wait_for_metric("vcr_kv_loads_total", 2.0);
            decode.wait_for_metric("vcr_kv_loads_failed_total", 1.0);
            decode.wait_for_metric("vcr_kv_loads_recomputed_total", f64::from(policy == "recompute"));
            let line = decode.serve.wait_for("KV did not arrive");
            assert!(line.contains(kind) && line.contains(policy), "{fault}: {line}");
            decode.is_whole();
            prefill.is_whole();
        }
    }
}

/// Each fault delays a transfer by at least half a second, and the request's measured time includes the delay.
#[test]
fn a_slow_transfer_is_part_of_the_time_to_first_token() {
    let prefill = Moving::start(&[]);
    // 32 KiB at 64 KiB/s take half a second.
    for fault in ["slow,by=500ms", "slow,bandwidth=64KiB/s"] {
        let decode = Moving::start(&["--fault", &format!("kv-transfer:{fault}")]);
        let params = prefill.compute(&prompt(0));
        let began = Instant::now();
        let answer = decode.complete(&prompt(0), 1, &params);
        assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(1)), "{}", answer.body);
        assert!(began.elapsed() >= Duration::from_millis(500), "{fault}: {:?}", began.elapsed());
        assert_eq!(decode.metric("vcr_kv_loads_failed_total"), 0.0);
        prefill.is_whole();
    }
}

/// The decode engine is killed while its request waits for KV, so it never reports that the blocks may be freed.
#[test]
fn a_decode_engine_that_dies_while_it_loads_costs_one_lease() {
    let prefill = Moving::start(&["--kv-lease", "1s"]);
    let mut decode = Moving::start(&["--kv-lease", "1s", "--fault", "kv-transfer:drop"]);
    let params = prefill.compute(&prompt(0));
    let body = json!({"prompt": prompt(0), "max_tokens": 3, "kv_transfer_params": params});
    let _answer = decode.serve.begin("/v1/completions", &body);
    decode.wait_for_metric("vcr_kv_loads_total", 1.0);
    decode.serve.kill();
    prefill.is_whole();
    prefill.wait_for_metric("vcr_leases_expired_total", 1.0);
    let another = Moving::start(&[]);
    let answer = another.complete(&prompt(1), 3, &prefill.compute(&prompt(1)));
    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(3)), "{}", answer.body);
    prefill.is_whole();
}

/// Requests name the address; a host that is not allowed is never contacted.
#[test]
fn a_host_outside_of_the_list_is_not_contacted() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    silent.set_nonblocking(true).expect("it can be asked");
    let port = silent.local_addr().expect("it has an address").port();
    let prefill = Moving::start(&["--kv-lease", "1s"]);
    let decode = Moving::start(&["--allow-remote-kv", "10.0.0.0/8"]);
    let mut params = prefill.compute(&prompt(0));
    params["remote_port"] = port.into();
    params["remote_host"] = "192.0.2.1".into();
    let answer = decode.complete(&prompt(0), 3, &params);
    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(3)), "it is computed here: {}", answer.body);
    decode.wait_for_metric("vcr_remote_kv_refused_total", 1.0);
    decode.serve.wait_for("192.0.2.1");
    assert_eq!((decode.metric("vcr_kv_loads_total"), decode.metric("vcr_kv_transfers_total")), (0.0, 0.0));
    let nobody = silent.accept().expect_err("no frontend connects");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    // Nobody has fetched the prompt, and its lease ends.
    prefill.is_whole();
}

/// Any process may listen at the address: the load fails with the reason, and the engine continues.
#[test]
fn a_peer_that_is_none_fails_the_load() {
    let (prefill, decode) = (Moving::start(&["--kv-lease", "1s"]), Moving::start(&["--kv-transfer-timeout", "2s"]));
    let mut params = prefill.compute(&prompt(0));
    // An HTTP server listens at this port.
    params["remote_port"] = prefill.serve.address().rsplit(':').next().and_then(|it| it.parse::<u16>().ok()).into();
    assert_eq!(decode.complete(&prompt(0), 3, &params).status, 503);
    // Nobody listens at this port.
    params["remote_port"] = free_port().into();
    assert_eq!(decode.complete(&prompt(1), 3, &params).status, 503);
    decode.serve.wait_for("cannot connect to KV peer");
    decode.wait_for_metric("vcr_kv_loads_failed_total", 2.0);
    let answer = decode.complete(&prompt(2), 3, &prefill.compute(&prompt(2)));
    assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(3)), "{}", answer.body);
    decode.is_whole();
    prefill.is_whole();
}

#[test]
fn what_cannot_move_is_told_at_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let taken = taken.local_addr().expect("it has an address").to_string();
    let port = taken.rsplit(':').next().expect("a port");
    let folder = Folder::new();
    let in_use = format!("cannot listen at {taken} for KV transfers");
    for (args, wanted) in [
        (&["--side-channel-port", port][..], in_use.as_str()),
        (&["--kv-transfer-listen", &taken], &in_use),
        (&["--kv-transfer-listen", "7000"], "invalid --kv-transfer-listen `7000`: expected HOST:PORT"),
        (&["--num-gpu-blocks", "100000000", "--kv-block-bytes", "1GiB"], "but this process may use"),
        (&["--kv-block-bytes", "1000B"], "invalid KV block of 1000 bytes: expected a multiple of 512"),
        (&["--tensor-parallel-size", "3"], "8 KV heads cannot be divided among 3 tensor-parallel ranks"),
        (&["--side-channel-port", "65535", "--data-parallel-size", "2"], "the last one is 65535"),
        (&["--fault", "kv-transfer:lose"], "kv-transfer"),
        (&["--allow-remote-kv", "10.0.0.0/99"], "--allow-remote-kv"),
    ] {
        let small = if args.contains(&"--num-gpu-blocks") { &[][..] } else { &["--num-gpu-blocks", "400"] };
        let said = folder.vcr(&[&["serve", "--port", "0", "--kv-transfer", "tcp"], small, args].concat());
        assert_eq!((said.code, said.stderr.contains(wanted)), (2, true), "{args:?}: {}", said.stderr);
    }
    for carrier in ["none", "nixl"] {
        folder
            .vcr(&["serve", "--port", "0", "--kv-transfer", carrier, "--kv-transfer-streams", "4"])
            .failed(2, &["invalid --kv-transfer-streams: expected --kv-transfer tcp with it"]);
    }
}
