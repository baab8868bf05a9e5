//! Sizes of KV blocks from a model's `config.json`.

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, byte_tokenizer, free_port};

use crate::moving::{Moving, completion_tokens, prompt};

fn llama() -> Value {
    json!({"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "torch_dtype": "bfloat16", "max_position_embeddings": 1024})
}

/// The block size that an engine with these options reports.
fn block_bytes(args: &[&str]) -> String {
    let port = free_port().to_string();
    let common = ["--kv-transfer", "tcp", "--side-channel-port", &port, "--num-gpu-blocks", "40", "--block-size", "16"];
    let serve = Serve::start(&[&common[..], &["--max-model-len", "256"], args].concat());
    let line = serve.wait_for("block_bytes=");
    line.rsplit("block_bytes=").next().and_then(|rest| rest.split_whitespace().next()).expect("a number").to_owned()
}

#[test]
fn blocks_have_the_size_of_the_model() {
    let folder = Folder::new();
    let mut config = llama();
    let text = |path: std::path::PathBuf| path.to_str().expect("a path is a text").to_owned();
    let plain = text(folder.write("llama.json", config.to_string()));
    // K and V of 32 layers, 8 heads of 128 numbers, and 16 tokens.
    let numbers = 2 * 32 * 8 * 128 * 16;
    assert_eq!(block_bytes(&["--kv-shape", &plain]), (numbers * 2).to_string());
    assert_eq!(block_bytes(&["--kv-shape", &plain, "--kv-cache-dtype", "fp8"]), numbers.to_string());
    assert_eq!(block_bytes(&["--kv-shape", &plain, "--dtype", "float32"]), (numbers * 4).to_string());
    assert_eq!(block_bytes(&["--kv-shape", &plain, "--kv-block-bytes", "1MiB"]), (1 << 20).to_string());
    config["quantization_config"] = json!({"kv_cache_scheme": {"type": "float", "num_bits": 8}});
    let small = text(folder.write("small.json", json!({"text_config": config}).to_string()));
    assert_eq!(block_bytes(&["--kv-shape", &small, "--tensor-parallel-size", "2"]), numbers.to_string());
    // One latent vector per layer and token; every rank has all of it.
    let latent =
        json!({"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64});
    let latent = text(folder.write("latent.json", latent.to_string()));
    assert_eq!(block_bytes(&["--kv-shape", &latent]), (61 * 576 * 16 * 2).to_string());
    let ranks = ["--kv-shape", &latent, "--tensor-parallel-size", "2"];
    assert_eq!(block_bytes(&ranks), (2 * 61 * 576 * 16 * 2).to_string());
}

#[test]
fn the_served_model_has_its_own_size_and_missing_fields_are_named() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("model")).expect("a temporary folder is writable");
    folder.write("model/tokenizer.json", byte_tokenizer().to_string());
    folder.write("model/config.json", llama().to_string());
    let model = folder.path().join("model");
    let model = model.to_str().expect("a path is a text");
    assert_eq!(block_bytes(&[model]), (2 * 32 * 8 * 128 * 16 * 2).to_string());
    assert_eq!(block_bytes(&[model, "--kv-shape", "2x4x16"]), (2 * 2 * 4 * 16 * 16 * 2).to_string());

    folder.write("model/config.json", r#"{"num_hidden_layers": 2, "num_attention_heads": 4}"#);
    let serve = ["serve", "--port", "0", "--kv-transfer", "tcp"];
    let shape = ["the KV of MODEL: invalid", "expected a field `hidden_size` above 0", "--kv-shape LAYERSxHEADSxSIZE"];
    folder.vcr(&[&serve[..], &[model]].concat()).failed(2, &shape);
    let shape = ["--kv-shape: invalid", "expected a field `hidden_size` above 0"];
    folder.vcr(&[&serve[..], &["--kv-shape", "model"]].concat()).failed(2, &shape);
    for wrong in ["2x4", "no-such.json", "0x1x1"] {
        let said = folder.vcr(&[&serve[..], &["--kv-shape", wrong]].concat()).ended(2);
        let wanted = "expected layers x KV heads x head size, such as 32x8x128, or a model's config.json";
        assert!(said.stderr.contains(wanted), "{wrong}: {}", said.stderr);
    }
    // Without transfers, the shape is not needed.
    let _ = Serve::start(&[model]);
}

/// Every rank reads a copy of the latent vectors, from engines with the same or another number of ranks.
#[test]
fn latent_vectors_move_to_each_rank() {
    let folder = Folder::new();
    let config = json!({"num_hidden_layers": 3, "num_attention_heads": 16, "kv_lora_rank": 64, "qk_rope_head_dim": 8});
    let shape = folder.write("config.json", config.to_string());
    let shape = shape.to_str().expect("a path is a text");
    let prefill = Moving::with_shape(shape, &["--tensor-parallel-size", "1"]);
    for (number, ranks) in [(0, "1"), (1, "2")] {
        let decode = Moving::with_shape(shape, &["--tensor-parallel-size", ranks]);
        let answer = decode.complete(&prompt(number), 3, &prefill.compute(&prompt(number)));
        assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(3)), "{}", answer.body);
        // Four blocks of 16 tokens.
        let of_rank = 4 * 3 * 72 * 16 * 2;
        decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", f64::from(of_rank * (number + 1)));
        assert_eq!(decode.metric("vcr_kv_transfer_failures_total"), 0.0);
        prefill.is_whole();
    }
    let other = Moving::with_shape("3x1x72", &[]);
    assert_eq!(other.complete(&prompt(2), 3, &prefill.compute(&prompt(2))).status, 503);
    other.serve.wait_for("K and V of a layer differ: Apart here, Latent at the peer");
}
