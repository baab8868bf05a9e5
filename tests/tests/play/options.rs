//! Options that cannot be used.

use std::io::Write as _;
use std::process::Command;

use vcr_tests::{Play, free_port, vcr};

#[test]
fn options_that_cannot_be_used_are_reported() {
    let run = |args: &[&str]| {
        let output = Command::new(vcr()).arg("play").args(args).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut list = tempfile::NamedTempFile::with_suffix(".jsonl").expect("a temporary file");
    writeln!(list, "{{\"output_token_ids\": [1, 2]}}\n{{\"output_token_ids\": [1, -2]}}").expect("it is writable");
    let list = list.path().to_str().expect("a path in text");
    for (args, wanted) in [
        (&["--vllm-minor", "0.26"][..], "expected 0.27 to 0.33"),
        (&["--handshake-address", "nonsense"], "invalid address `nonsense`: expected tcp://HOST:PORT"),
        (&["--handshake-address", "tcp://127.0.0.1:99999"], "the port is `99999`"),
        (&["--handshake-address", "ipc:///no/such/folder/a"], "expected a folder /no/such/folder"),
        (&["--connect-timeout", "0s"], "expected more than 0"),
        (&["--handshake-address", "tcp://127.0.0.1:1", "--connect-timeout", "200ms"], "127.0.0.1:1 within 0.2 s"),
        (&["--handshake-address", "tcp://no-such-host.invalid:1", "--connect-timeout", "1ms"], "does not resolve"),
        (&["--num-gpu-blocks", "1"], "invalid `num_gpu_blocks`: expected at least 2"),
        (&["--max-num-batched-tokens", "10"], "is smaller than `max_num_seqs`"),
        (&["--latency", "fixed(#{ stp: \"1ms\" })"], "stp"),
        (&["--latency", "no-such-guest.wasm"], "no-such-guest.wasm"),
        (&["--latency", "oci://localhost:1/a:1"], "expected a digest"),
        (&["--latency", "fixed(#{ step: \"1ms\" })", "--latency-fallback", "7"], "expected a latency model"),
        (
            &["--latency", "fixed(#{ step: \"1ms\" })", "--latency-fallback", "fixed(#{ step: \"1ms\" })"],
            "only guests take a fallback",
        ),
        (&["--tokens", "echo", "--tokens-fallback"], "only guests take a fallback"),
        (&["--failure-injector-fallback"], "--failure-injector"),
        (&["--router", "prefix-afinity"], "did you mean"),
        (&["--router", "prefix_affinity(#{ load_factor: 0 })"], "invalid `load_factor`: expected 1 to 1e6"),
        (&["--router", "least-loaded", "--router-config", "{}"], "only guests take a configuration"),
        (&["--router", "least-loaded", "--router-fallback", "round-robin"], "only guests take a fallback"),
        (&["--router-fallback", "round-robin"], "--router"),
        (&["--inter-token-latency", "10"], "has no unit"),
        (&["--inter-token-latency", "10ms", "--latency", "7"], "cannot be used with"),
        (&["--fault", "eror:rate=1"], "unknown fault `eror`"),
        (&["--tokens", "nothing"], "unknown source or file `nothing` of --tokens"),
        (&["--tokens", list], "jsonl:2: "),
        (&["--output-tokens", "\"10ms\""], "--output-tokens"),
        (&["--failure-injection-rate", "2"], "expected 0 to 1"),
        (&["--failure-injection-rate", "0.5", "--failure-types", "x"], "expected stop, length, abort"),
        (&["--time-scale", "0"], "invalid --time-scale: expected more than 0"),
        (&["--vllm-args", "--max-num-seqs 7 --foo"], "--vllm-args: unknown argument `--foo`"),
        (&["--max-cpu-loras", "2"], "invalid --max-cpu-loras: expected --max-loras with it"),
        (&["--kv-transfer-streams", "4"], "invalid --kv-transfer-streams: expected --kv-transfer tcp with it"),
        (&["--enable-kv-cache-events", "--no-enable-prefix-caching"], "needs prefix caching"),
        (
            &["--kv-transfer", "tcp", "--drafter", "mtp", "--num-speculative-tokens", "2", "--kv-shape", "32x8x128"],
            "needs --disable-lookahead-block-hashes",
        ),
        (&["--drafter", "medusa", "--num-speculative-tokens", "2"], "medusa"),
    ] {
        let (code, said) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}

/// A missing peer is not an error, but the log says what the process waits for.
#[test]
fn waiting_for_the_frontend_is_said() {
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let play = Play::start(&address, &["--data-parallel-size", "3"]);
    play.wait_for(&format!("waiting for the frontend at {address} (2 s): nothing listens there yet"));
    play.wait_for(&format!("waiting for the frontend at {address} (5 s)"));
    let times = play.log().lines().filter(|line| line.contains("(2 s)")).count();
    assert_eq!(times, 1, "one engine speaks for all: {}", play.log());
    let unknown = Play::start("tcp://no-such-host.invalid:1", &[]);
    unknown.wait_for("(2 s): the host `no-such-host.invalid` does not resolve (");

    let args = ["play", "--quiet", "--handshake-address", &address, "--connect-timeout", "3s"];
    let output = Command::new(vcr()).args(args).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("nothing came from") && said.contains("within 3 s"), "{said}");
}

/// The message names the limit and the options that change the need, not only the failed open.
#[test]
fn too_many_engines_for_the_limit_of_open_files_are_reported() {
    let script = "ulimit -n 500; exec \"$0\" play --data-parallel-size 100";
    let output = Command::new("sh").args(["-c", script]).arg(vcr()).output().expect("there is a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in ["--data-parallel-size 100", "this process may open 500, enough for 22 engines", "ulimit -Hn"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}
