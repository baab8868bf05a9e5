//! The file of options, and the reported sources of values.

use std::process::Command;

use serde_json::json;
use vcr_tests::{Folder, Said, Serve, vcr};

#[test]
fn flags_come_before_the_environment_the_file_and_defaults() {
    let folder = Folder::new();
    let file = "served-model-name: [one, two]\nmax_num_seqs: 7\nport: 1\nno-enable-prefix-caching: true\nseed: 5\n";
    std::fs::write(folder.path().join("serve.yaml"), file).expect("the folder is writable");
    std::fs::write(folder.path().join("llm-d.yaml"), "model: three\nmax-num-seqs: 9\nblock-size: 32\nseed: 1\n")
        .expect("the folder is writable");
    let args = ["serve", "--config", "serve.yaml", "--llm-d-config", "llm-d.yaml", "--seed", "9", "--show-config"];
    let mut command = Command::new(vcr());
    command.args(args).current_dir(folder.path()).env("VCR_PORT", "7").env("VLLM_API_KEY", "key-of-mine");
    let said = Said::of(&mut command).ended(0).stdout;
    let line = |name: &str| said.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap_or("").to_owned();
    assert_eq!(line("port"), "port: 7  # environment VCR_PORT");
    assert_eq!(line("block-size"), "block-size: 32  # file llm-d.yaml");
    assert_eq!(line("api-key"), "api-key: (hidden)  # environment VLLM_API_KEY");
    assert!(!said.contains("key-of-mine"), "{said}");
    assert_eq!(line("served-model-name"), "served-model-name: one, two  # file serve.yaml");
    assert_eq!(line("max-num-seqs"), "max-num-seqs: 7  # file serve.yaml");
    assert_eq!(line("seed"), "seed: 9  # flag");
    assert_eq!(line("host"), "host: 127.0.0.1  # default");
    assert_eq!(line("no-enable-prefix-caching"), "no-enable-prefix-caching: true  # file serve.yaml");
}

#[test]
fn a_file_serves() {
    let folder = Folder::new();
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, "served_model_name: [from-file]\nmax-model-len: 64\n").expect("the folder is writable");
    let serve = Serve::start(&["--config", path.to_str().expect("a path is a text")]);
    let models = serve.get("/v1/models").body;
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("from-file"), &json!(64)));
}

#[test]
fn mistakes_in_the_file_are_told() {
    let folder = Folder::new();
    for (text, said) in [
        ("no-such-option: 1\n", "unknown option `no-such-option`"),
        ("quiet: 3\n", "invalid value of `quiet`: expected true or false"),
        ("port: [1, 2]\n", "invalid value of `port`: expected one value"),
        ("- a\n", "expected a map of options"),
        ("port: many\n", "many"),
    ] {
        std::fs::write(folder.path().join("serve.yaml"), text).expect("the folder is writable");
        let stderr = folder.vcr(&["serve", "--config", "serve.yaml"]).ended(2).stderr;
        assert!(stderr.contains(said), "{text}: {stderr}");
    }
}
