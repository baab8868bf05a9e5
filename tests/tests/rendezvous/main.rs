//! Prefill and decode engines whose requests arrive in any order: `--kv-rendezvous`.

mod bad;
mod behind;
mod dynamo;
mod mooncake;
mod sglang;

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use vcr_tests::{Reply, Serve, ended, free_port, free_ports, root, wait_until};

/// A prompt of ten blocks of 16 tokens.
fn prompt() -> Vec<u32> {
    (1000..1160).collect()
}

/// A server whose KV moves over TCP, or takes a modelled time to move.
struct Worker {
    serve: Serve,
    /// Bootstrap port.
    port: u16,
    /// Port of the metrics.
    metrics: u16,
}

const SMALL: [&str; 6] = ["--num-gpu-blocks", "400", "--block-size", "16", "--kv-block-bytes", "4KiB"];

impl Worker {
    fn start(protocol: &str, more: &[&str]) -> Self {
        // Two engines use consecutive ports.
        let (port, side_channel, metrics) = (free_ports(2), free_ports(2), free_port());
        let (bootstrap, side_channel) = (port.to_string(), side_channel.to_string());
        let address = format!("127.0.0.1:{metrics}");
        let args = ["--kv-rendezvous", protocol, "--kv-rendezvous-port", &bootstrap];
        let more = [&["--side-channel-port", &side_channel, "--metrics-address", &address], more].concat();
        Self { serve: Serve::start(&[&args[..], &SMALL, &more].concat()), port, metrics }
    }

    fn prefill(protocol: &str) -> Self {
        Self::start(protocol, &["--kv-transfer", "tcp"])
    }

    fn decode(protocol: &str) -> Self {
        Self::start(protocol, &["--kv-transfer", "tcp", "--kv-rendezvous-role", "decode"])
    }

    /// A completion of five tokens for a prompt that `salt` makes unique.
    fn complete(&self, salt: &str, params: &Value) -> Reply {
        let body = json!({
            "model": "sim", "prompt": prompt(), "max_tokens": 5, "ignore_eos": true, "cache_salt": salt,
            "kv_transfer_params": params,
        });
        self.serve.post("/v1/completions", &body)
    }

    /// Sum of a metric over its labels.
    fn metric(&self, name: &str) -> f64 {
        let mut answer =
            ureq::get(format!("http://127.0.0.1:{}/metrics", self.metrics)).call().expect("there are metrics");
        let text = answer.body_mut().read_to_string().expect("metrics are text");
        let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until the blocks of all prompts are free.
    #[track_caller]
    fn is_whole(&self) {
        wait_until("all blocks are free", || self.metric("vcr_kv_cache_usage_ratio") == 0.0);
    }
}

/// Number of output tokens of an answer.
#[track_caller]
fn completed(reply: &Reply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["usage"]["completion_tokens"].as_u64().expect("it counts tokens")
}

#[track_caller]
fn reason(reply: &Reply) -> String {
    assert_ne!(reply.status, 200, "{}", reply.body);
    reply.body["error"]["message"].as_str().unwrap_or_else(|| panic!("{}", reply.body)).to_owned()
}

/// Last output of another system's worker.
#[track_caller]
fn foreign(args: &[&str]) -> Value {
    let said = ended(command(args));
    serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("no JSON: {error}: {said}"))
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("tests/frontends/clients/rendezvous.py")).args(args);
    command
}

/// Another system's worker; killed on drop.
struct Foreign {
    process: Child,
    lines: RefCell<Lines<BufReader<ChildStdout>>>,
    port: u16,
}

impl Foreign {
    /// Starts the worker and reads the port that it prints.
    #[track_caller]
    fn start(args: &[&str]) -> Self {
        let mut process = command(args).stdout(Stdio::piped()).spawn().expect("there is a python3");
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut foreign = Self { process, lines: RefCell::new(lines), port: 0 };
        let port = foreign.next()["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        foreign.port = port.expect("it prints its port");
        foreign
    }

    /// Next message of the worker.
    #[track_caller]
    fn next(&self) -> Value {
        let line = self.lines.borrow_mut().next().expect("it says more").expect("it prints text");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("no JSON: {error}: {line}"))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Calls `then` while `first` runs in another thread.
fn both<A: Send, B>(first: impl FnOnce() -> A + Send, then: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let first = scope.spawn(first);
        let then = then();
        (first.join().expect("it ends"), then)
    })
}
