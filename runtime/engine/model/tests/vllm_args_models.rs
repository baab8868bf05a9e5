//! Lengths, groups and blocks of known models.

use vcr_model::vllm_args::{Deployment, VllmArgs};

fn read(command: &str) -> Result<VllmArgs, Vec<String>> {
    let read = VllmArgs::read(command, Deployment { minor: "0.32", ..Deployment::default() });
    read.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn blocks(args: &VllmArgs) -> Result<u32, String> {
    let served = args.served.as_ref().expect("the model is known");
    let blocks = served.num_gpu_blocks(args.gpu_memory_utilization, 0, args.kv_cache_memory_bytes);
    blocks.map_err(|error| error.to_string())
}

#[test]
fn a_known_model_gives_lengths_groups_and_blocks() {
    let args = read("vllm serve openai/gpt-oss-20b --kv-cache-memory-bytes 60G").expect("it is valid");
    let groups: Vec<String> = args.input.kv_cache_groups.iter().map(ToString::to_string).collect();
    assert_eq!((args.input.max_model_len, args.input.block_size), (Some(131_072), 16));
    assert_eq!(groups, ["sliding_window:128", "full"]);
    // vLLM 0.32 counted the same number.
    assert_eq!(blocks(&args), Ok(163_840));
    let latent = read("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --kv-cache-memory-bytes 60G").expect("it is valid");
    assert_eq!((latent.input.block_size, blocks(&latent)), (64, Ok(14_324)));
    assert!(latent.input.kv_cache_groups.is_empty());
    let plain = "vllm serve openai/gpt-oss-20b --disable-hybrid-kv-cache-manager --max-model-len 4k";
    let plain = read(plain).expect("it is valid");
    assert!(plain.input.kv_cache_groups.is_empty());
    assert_eq!(plain.input.max_model_len, Some(4_000));
}

#[test]
fn layers_with_states_are_groups() {
    let groups = |command: &str| {
        let args = read(&format!("vllm serve {command}")).expect("it is valid");
        let groups: Vec<String> = args.input.kv_cache_groups.iter().map(ToString::to_string).collect();
        (args.input.block_size, groups.join(" "), blocks(&args))
    };
    // vLLM 0.32 counted the same numbers.
    let linear = groups("Qwen/Qwen3.5-27B --kv-cache-memory-bytes 60G");
    assert_eq!((linear.0, &*linear.1, linear.2), (784, "mamba mamba mamba full", Ok(1253)));
    let mamba2 = groups("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --no-enable-prefix-caching");
    assert_eq!((mamba2.0, &*mamba2.1), (2096, "mamba:1 mamba:1 mamba:1 mamba:1 full"));
    // The convolution of each draft makes the state larger.
    let drafts = "Qwen/Qwen3.5-27B --spec-method ngram --spec-tokens 4";
    assert_eq!(groups(drafts).0, 816);
}

#[test]
fn an_unknown_model_changes_nothing() {
    let args = read("vllm serve org/model").expect("it is valid");
    assert!(args.served.is_none() && args.input.kv_cache_groups.is_empty());
    assert_eq!((args.input.max_model_len, args.input.block_size), (None, 16));
}

#[test]
fn models_that_do_not_fit_are_refused_with_the_numbers() {
    for (command, wanted) in [
        ("Qwen/Qwen3-8B -tp 3", "total number of attention heads (32) must be divisible by tensor parallel size (3)"),
        ("Qwen/Qwen3-8B --max-model-len 100000", "100000 is greater than the derived max_model_len 40960"),
        ("Qwen/Qwen3-8B --kv-cache-dtype fp9", "unknown `fp9`: expected auto, bfloat16"),
        ("Qwen/Qwen3-8B --quantization fb8", "unknown `fb8`: did you mean `fp8`?"),
        ("deepseek-ai/DeepSeek-V3 --block-size 16", "16: expected a multiple of 64"),
    ] {
        let errors = read(&format!("vllm serve {command}")).and_then(|args| {
            let served = args.served.as_ref().expect("the model is known");
            served.model.weight_bytes(&served.serving).map_err(|error| vec![error.to_string()])
        });
        let errors = errors.expect_err(command);
        assert!(errors.iter().any(|error| error.contains(wanted)), "{command}: {errors:?}");
    }
    let large = read("vllm serve meta-llama/Llama-3.1-70B").expect("it is valid");
    let error = blocks(&large).expect_err("131 GiB are more than 79");
    assert!(error.starts_with("No available memory for the cache blocks: "), "{error}");
    assert!(error.contains("131.41 GiB of weights on each of 1 GPUs, but 79.20 GiB x 0.92"), "{error}");
    let long = read("vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 1G").expect("it is valid");
    let error = blocks(&long).expect_err("a sequence takes more");
    assert!(error.contains("the estimated maximum model length is 7264"), "{error}");
}

#[test]
fn a_folder_with_a_config_is_a_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("m");
    std::fs::create_dir(&model).expect("it is writable");
    let config = r#"{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "intermediate_size": 768,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
        "vocab_size": 1000, "max_position_embeddings": 4096}"#;
    std::fs::write(model.join("config.json"), config).expect("it is writable");
    std::fs::write(folder.path().join("c.yaml"), "model: m\nmax-num-seqs: 9\n").expect("it is writable");
    let deployment = Deployment { folder: folder.path(), ..Deployment::default() };
    let args = VllmArgs::read("vllm serve --config c.yaml", deployment).expect("it is valid");
    assert_eq!((args.input.max_num_seqs, args.input.max_model_len), (9, Some(4_096)));
    let names: Vec<&str> = args.files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["c.yaml", "m"]);
    std::fs::write(model.join("config.json"), config.replace("vocab_size", "vocabulary")).expect("it is writable");
    let errors = VllmArgs::read("vllm serve m", deployment).expect_err("a field is missing");
    assert!(errors[0].to_string().ends_with("expected a field `vocab_size`"), "{errors:?}");
}

#[test]
fn the_longest_sequence_may_be_the_one_that_fits() {
    for word in ["auto", "-1"] {
        let args = read(&format!("vllm serve Qwen/Qwen3-8B --max-model-len {word} --kv-cache-memory-bytes 1073741824"));
        let args = args.expect("it is valid");
        // vLLM 0.32 estimates the same length.
        assert_eq!(args.input.max_model_len, Some(7264));
        let row = args.rows.iter().find(|row| row.argument == "--max-model-len").expect("it has a row");
        assert_eq!(row.result, "max_model_len: 7264, the longest that fits");
        assert_eq!(args.rows.iter().filter(|row| row.argument == "--max-model-len").count(), 1);
        assert!(blocks(&args).is_ok());
    }
    let whole = read("vllm serve Qwen/Qwen3-8B --max-model-len auto").expect("it is valid");
    assert_eq!(whole.input.max_model_len, read("vllm serve Qwen/Qwen3-8B").expect("it is valid").input.max_model_len);
    let stated =
        read("vllm serve Qwen/Qwen3-8B --max-model-len auto --num-gpu-blocks-override 65").expect("it is valid");
    assert_eq!(stated.input.max_model_len, Some(64 * 16));
    // Each of the two stages has half of the layers.
    let split = "vllm serve Qwen/Qwen3-8B --max-model-len auto -pp 2 --kv-cache-memory-bytes 1073741824";
    assert!(read(split).expect("it is valid").input.max_model_len > Some(2 * 7264));
    let none = read("vllm serve Qwen/Qwen3-8B --max-model-len auto --kv-cache-memory-bytes 1").expect_err("no room");
    assert!(none[0].contains("Cannot auto-fit max_model_len"), "{none:?}");
    let unknown = read("vllm serve org/model --max-model-len auto").expect_err("it is not known");
    assert!(unknown[0].contains("only a known model"), "{unknown:?}");
}
