//! Random transfers between processes that are killed: nothing leaks, and every request ends with a reason.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;
use vcr_core::seed::{derive, mix};
use vcr_tests::{Serve, client, free_port, wait_until};

/// Number of concurrent transfers.
const THREADS: u32 = 16;
/// Number of transfers after which a process may be killed.
const ROUND: u32 = 64;
/// Faults at the decode engines.
const FAULTS: [&str; 4] = ["drop,rate=0.01", "corrupt,rate=0.02", "refuse,rate=0.02", "slow,by=5ms,rate=0.1"];

#[test]
fn transfers_with_kills_leave_all_pools_whole() {
    storm(&["--kv-transfer", "tcp"], 384, 7);
}

#[test]
fn transfers_through_nixl_with_kills_leave_all_pools_whole() {
    with_nixl(|plane| storm(plane, 384, 7));
}

/// The size that is run before a release.
#[test]
#[ignore = "takes minutes; run with --run-ignored all"]
fn twenty_thousand_transfers_with_kills_leave_all_pools_whole() {
    storm(&["--kv-transfer", "tcp"], 20_000, 11);
}

#[test]
#[ignore = "takes minutes; run with --run-ignored all"]
fn twenty_thousand_transfers_through_nixl_with_kills_leave_all_pools_whole() {
    with_nixl(|plane| storm(plane, 20_000, 11));
}

fn with_nixl(check: impl Fn(&[&str])) {
    let Some(python) = client("nixl") else { return };
    let library = python.nixl_library();
    check(&["--kv-transfer", "nixl", "--nixl-library", library.to_str().expect("a path in text")]);
}

/// An engine and its server, which can be killed and restarted with the same side channel.
struct Process {
    name: &'static str,
    args: Vec<String>,
    metrics: String,
    serve: Serve,
    kills: u32,
}

impl Process {
    fn start(name: &'static str, plane: &[&str], more: &[String]) -> Self {
        let (port, metrics) = (free_port().to_string(), format!("127.0.0.1:{}", free_port()));
        let sizes = ["--kv-shape", "2x4x16", "--num-gpu-blocks", "600", "--block-size", "16", "--engine-id", name];
        let own = ["--side-channel-port", &port, "--metrics-address", &metrics];
        let times = ["--latency", r#"fixed(#{ step: "2ms" })"#, "--kv-lease", "2s", "--kv-transfer-timeout", "500ms"];
        let args = [plane, &own, &sizes, &times].concat().into_iter().map(str::to_owned);
        let args: Vec<String> = args.chain(more.iter().cloned()).collect();
        let serve = Self::serve(&args);
        Self { name, args, metrics, serve, kills: 0 }
    }

    fn serve(args: &[String]) -> Serve {
        Serve::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn kill(&mut self) {
        self.serve.kill();
        self.kills += 1;
    }

    fn start_again(&mut self) {
        self.serve = Self::serve(&self.args);
    }

    fn metric(&self, name: &str) -> f64 {
        let answer = agent().get(format!("http://{}/metrics", self.metrics)).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    #[track_caller]
    fn is_whole(&self) {
        for name in ["vcr_prompts_held", "vcr_kv_cache_usage_ratio"] {
            wait_until(&format!("{name} of {} is 0", self.name), || self.metric(name) == 0.0);
        }
    }
}

fn agent() -> Agent {
    let patience = Some(Duration::from_secs(60));
    Agent::config_builder().http_status_as_error(false).timeout_global(patience).build().into()
}

/// Random numbers that are the same in each run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = mix(self.0.wrapping_add(1));
        self.0 % limit
    }
}

/// Number of requests by how they have ended.
#[derive(Debug, Default)]
struct Ends {
    complete: AtomicU32,
    /// Answered with an error and a reason.
    failed: AtomicU32,
    /// Aborted by the client.
    given_up: AtomicU32,
    /// Lost with a killed server.
    lost: AtomicU32,
}

fn add(count: &AtomicU32) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn get(count: &AtomicU32) -> u32 {
    count.load(Ordering::Relaxed)
}

/// The two servers of a transfer, and whether one of them is killed in the meantime.
#[derive(Clone, Copy)]
struct Place<'a> {
    prefill: &'a str,
    decode: &'a str,
    is_killed: bool,
}

fn post(address: &str, body: &Value, patience: Duration) -> Result<(u16, Value), ureq::Error> {
    let request = agent().post(format!("http://{address}/v1/completions"));
    let request = request.header("Content-Type", "application/json");
    let mut answer = request.config().timeout_global(Some(patience)).build().send(body.to_string())?;
    let text = answer.body_mut().read_to_string()?;
    Ok((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null)))
}

/// Runs one request from start to end.
fn transfer(place: Place<'_>, draws: &mut Draws, ends: &Ends) {
    let long = Duration::from_secs(60);
    let (first, length) = (draws.below(3) * 300, 1 + draws.below(120));
    let prompt: Vec<u64> = (0..length).map(|place| 100 + first + place).collect();
    let params = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let body = json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true, "kv_transfer_params": params});
    let computed = match post(place.prefill, &body, long) {
        Ok((200, computed)) => computed,
        Ok((status, body)) => panic!("the prefill engine answers with {status}: {body}"),
        Err(error) => {
            assert!(place.is_killed, "a prefill engine that lives does not answer: {error}");
            return add(&ends.lost);
        }
    };
    let (gives_up, tokens) = (draws.below(8) == 0, 1 + draws.below(3));
    let patience = if gives_up { Duration::from_micros(200 + draws.below(10_000)) } else { long };
    let params = &computed["kv_transfer_params"];
    let body = json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "kv_transfer_params": params});
    match post(place.decode, &body, patience) {
        Ok((200, answer)) => {
            assert_eq!(answer["usage"]["completion_tokens"], tokens, "{answer}");
            add(&ends.complete);
        }
        Ok((503, answer)) => {
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("KV"), "no reason: {answer}");
            add(&ends.failed);
        }
        Ok((status, answer)) => panic!("the decode engine answers with {status}: {answer}"),
        Err(_) if gives_up => add(&ends.given_up),
        Err(error) => {
            assert!(place.is_killed, "a decode engine that lives does not answer: {error}");
            add(&ends.lost);
        }
    }
}

/// Runs this many concurrent transfers; `kill` may be called meanwhile.
fn round<'a>(
    numbers: Range<u32>,
    seed: u64,
    place: Place<'a>,
    decoders: [&'a str; 2],
    ends: &Ends,
    kill: impl FnOnce(),
) {
    let next = AtomicU32::new(numbers.start);
    thread::scope(|scope| {
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return;
                }
                let mut draws = Draws(derive(seed, "storm.transfer", number.into()));
                let decode = decoders[(number % 2) as usize];
                transfer(Place { decode, ..place }, &mut draws, ends);
            }
        };
        for _ in 0..THREADS {
            scope.spawn(work);
        }
        kill();
    });
}

fn storm(plane: &[&str], transfers: u32, seed: u64) {
    let faults = FAULTS.iter().flat_map(|rule| ["--fault".to_owned(), format!("kv-transfer:{rule}")]);
    let faults: Vec<String> = faults.collect();
    let with_policy =
        |policy: &str| [&faults[..], &["--kv-load-failure-policy".to_owned(), policy.to_owned()]].concat();
    let mut engines = [
        Process::start("prefill", plane, &[]),
        Process::start("decode-fail", plane, &with_policy("fail")),
        Process::start("decode-recompute", plane, &with_policy("recompute")),
    ];
    let (mut draws, ends) = (Draws(derive(seed, "storm", 0)), Ends::default());
    let (mut number, mut rounds) = (0, 0_usize);
    while number < transfers {
        let numbers = number..(number + ROUND).min(transfers);
        number = numbers.end;
        rounds += 1;
        let victim = (rounds % 2 == 0).then_some(rounds / 2 % 3);
        let addresses = [0, 1, 2].map(|which: usize| engines[which].serve.address().to_owned());
        let place = Place { prefill: &addresses[0], decode: "", is_killed: victim.is_some() };
        let after = Duration::from_millis(draws.below(60));
        round(numbers, seed, place, [&addresses[1], &addresses[2]], &ends, || {
            if let Some(victim) = victim {
                thread::sleep(after);
                engines[victim].kill();
            }
        });
        if let Some(victim) = victim {
            engines[victim].start_again();
        }
    }
    for engine in &engines {
        engine.is_whole();
        let counts = ["vcr_kv_loads_total", "vcr_kv_loads_failed_total", "vcr_leases_expired_total"];
        eprintln!(
            "{}: killed {} times; since then {:?}",
            engine.name,
            engine.kills,
            counts.map(|it| engine.metric(it))
        );
    }
    eprintln!("{ends:?}");
    let all = [&ends.complete, &ends.failed, &ends.given_up, &ends.lost].map(get);
    assert_eq!(all.iter().sum::<u32>(), transfers, "every request has ended: {ends:?}");
    assert!(get(&ends.complete) > transfers / 4, "{ends:?}");
}
