//! Options that cannot be used.

use std::io::Write as _;

#[test]
fn options_that_cannot_be_used_are_told() {
    let run = |args: &[&str]| {
        let output = std::process::Command::new(vcr_tests::vcr()).arg("play").args(args).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut list = tempfile::NamedTempFile::with_suffix(".jsonl").expect("a temporary file");
    writeln!(list, "{{\"output_token_ids\": [1, 2]}}\n{{\"output_token_ids\": [1, -2]}}").expect("it is writable");
    let list = list.path().to_str().expect("a path in text");
    for (args, wanted) in [
        (&["--vllm-line", "0.26"][..], "one of 0.27 to 0.33"),
        (&["--handshake-address", "nonsense"], "nonsense cannot be used"),
        (&["--num-gpu-blocks", "1"], "`num_gpu_blocks` must be at least 2"),
        (&["--max-num-batched-tokens", "10"], "is smaller than `max_num_seqs`"),
        (&["--latency", "fixed(#{ stp: \"1ms\" })"], "stp"),
        (&["--latency", "no-such-guest.wasm"], "no-such-guest.wasm"),
        (&["--latency", "oci://localhost:1/a:1"], "names no digest"),
        (&["--latency", "fixed(#{ step: \"1ms\" })", "--latency-fallback", "7"], "must be a latency model"),
        (
            &["--latency", "fixed(#{ step: \"1ms\" })", "--latency-fallback", "fixed(#{ step: \"1ms\" })"],
            "only guests take a fallback",
        ),
        (&["--tokens", "echo", "--tokens-fallback"], "only guests take a fallback"),
        (&["--failure-injector-fallback"], "--failure-injector"),
        (&["--router", "prefix-afinity"], "did you mean"),
        (&["--router", "prefix_affinity(#{ load_factor: 0 })"], "`load_factor` must be 1 to 1e6"),
        (&["--router", "least-loaded", "--router-config", "{}"], "only guests take a configuration"),
        (&["--router", "least-loaded", "--router-fallback", "round-robin"], "only guests take a fallback"),
        (&["--router-fallback", "round-robin"], "--router"),
        (&["--inter-token-latency", "10"], "has no unit"),
        (&["--inter-token-latency", "10ms", "--latency", "7"], "cannot be used with"),
        (&["--fault", "eror:rate=1"], "there is no `eror`"),
        (&["--tokens", "nothing"], "no such source and no such file"),
        (&["--tokens", list], "jsonl:2: "),
        (&["--output-tokens", "\"10ms\""], "--output-tokens"),
        (&["--failure-injection-rate", "2"], "must be from 0 to 1"),
        (&["--failure-injection-rate", "0.5", "--failure-types", "x"], "must be error, abort"),
        (&["--time-scale", "0"], "--time-scale must be more than 0"),
        (&["--enable-kv-cache-events", "--no-enable-prefix-caching"], "needs prefix caching"),
    ] {
        let (code, said) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}
