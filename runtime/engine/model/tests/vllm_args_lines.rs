//! Typical command lines.

use vcr_core::{Drafter, EvictionPolicy, HostRules, MambaCacheMode, Policy};
use vcr_model::vllm_args::{Deployment, Effect, VllmArgs};

fn read(command: &str) -> VllmArgs {
    VllmArgs::read(command, Deployment::default()).unwrap_or_else(|errors| panic!("{command}: {errors:?}"))
}

fn errors(command: &str) -> Vec<String> {
    let errors = VllmArgs::read(command, Deployment::default()).expect_err("it is to be refused");
    errors.iter().map(ToString::to_string).collect()
}

fn on(gpu: &str, minor: &str, command: &str) -> (u32, u32) {
    let read =
        VllmArgs::read(command, Deployment { minor, gpu, ..Deployment::default() }).expect("a valid command line");
    (read.input.max_num_batched_tokens, read.input.max_num_seqs)
}

#[test]
fn a_line_of_a_deployment_is_taken_as_it_is() {
    let args = read(
        "VLLM_LOGGING_LEVEL=DEBUG vllm serve meta-llama/Llama-3.1-70B-Instruct \\\n  --tensor-parallel-size 4 -dp=2 \
         --max-num-seqs 512 --max_model_len=32k --kv-cache-dtype fp8 --gpu-memory-utilization 0.9 \
         --served-model-name llama big --no-enable-prefix-caching --scheduling-policy priority --enable-lora \
         --max-loras 4 --port 8000 --api-key secret -O3 --enforce-eager",
    );
    assert_eq!(args.model.as_deref(), Some("meta-llama/Llama-3.1-70B-Instruct"));
    assert_eq!(args.served_model_names, ["llama", "big"]);
    assert_eq!((args.tensor_parallel_size, args.data_parallel_size, args.kv_cache_dtype.as_str()), (4, 2, "fp8"));
    assert_eq!((args.input.max_num_seqs, args.input.max_num_batched_tokens), (512, 8_192));
    assert_eq!((args.input.max_model_len, args.input.policy), (Some(32_000), Policy::Priority));
    assert_eq!((args.input.enable_prefix_caching, args.input.max_loras, args.input.async_scheduling), (false, 4, true));
    assert!((args.gpu_memory_utilization - 0.9).abs() < 1e-9 && args.num_gpu_blocks.is_none());
    let effect = |name: &str| args.rows.iter().find(|row| row.argument == name).map(|row| row.effect);
    assert_eq!(effect("--max-num-seqs"), Some(Effect::Setting));
    assert_eq!(effect("--enforce-eager"), Some(Effect::Speed));
    assert_eq!(effect("--optimization-level"), Some(Effect::Speed));
    assert_eq!(effect("--port"), Some(Effect::Nothing));
    assert_eq!(effect("--max-num-batched-tokens"), Some(Effect::Default));
    assert_eq!(effect("--max-loras"), Some(Effect::Setting));
}

#[test]
fn other_forms_of_the_command_are_the_same() {
    let expected = read("vllm serve m --max-num-seqs 7 --max-num-batched-tokens 70").input;
    for command in [
        "m --max-num-seqs 7 --max-num-batched-tokens 70",
        "--model m --max-num-seqs=7 --max-num-batched-tokens=70",
        "/opt/venv/bin/vllm serve --max-num-seq 7 --max_num_batched_tokens 70 m",
        "python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs '7' --max-num-batched-tokens \"70\"",
        "docker run --gpus all image vllm serve m --max-num-seqs 7 --max-num-batched-tokens 70",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model m --max-num-seqs 7 --max-num-batched-tokens 70",
        "sudo podman run ghcr.io/vllm/vllm-openai:v0.33.0 m --max-num-seqs 7 --max-num-batched-tokens 70",
        "CUDA_VISIBLE_DEVICES=0 A= m --max-num-seqs 7 --max-num-batched-tokens 70",
    ] {
        assert_eq!(read(command).input, expected, "{command}");
    }
}

#[test]
fn defaults_are_those_of_version_and_gpu() {
    for (gpu, minor, expected) in [
        ("h100-sxm", "0.33", (8_192, 1_024)),
        ("h100-sxm", "0.27", (8_192, 1_024)),
        ("a100-80gb", "0.33", (2_048, 256)),
        ("l4", "0.30", (2_048, 256)),
        ("b200", "0.28", (16_384, 1_024)),
        ("b200", "0.27", (8_192, 1_024)),
        ("gb10", "0.32", (8_192, 1_024)),
        ("gb10", "0.33", (2_048, 256)),
    ] {
        assert_eq!(on(gpu, minor, "m"), expected, "{gpu} {minor}");
    }
    // As in `_set_default_max_num_seqs_and_batched_tokens_args`.
    let h100 = |command| on("h100-sxm", "0.33", command);
    assert_eq!(h100("m --performance-mode throughput"), (16_384, 2_048));
    assert_eq!(h100("m --performance-mode throughput --max-num-seqs 9"), (16_384, 9));
    assert_eq!(h100("m --no-enable-chunked-prefill --max-model-len 100000"), (100_000, 1_024));
    assert_eq!(h100("m --max-num-seqs 2 --max-model-len 1000"), (2_000, 2));
    assert_eq!(h100("m --max-num-batched-tokens 100"), (100, 100));
    assert_eq!(h100("m --max-num-batched-tokens 100 --max-num-seqs 50"), (100, 50));
}

#[test]
fn async_scheduling_is_on_unless_something_excludes_it() {
    assert!(read("m").input.async_scheduling);
    assert!(!read("m --no-async-scheduling").input.async_scheduling);
    assert!(!read("m --runner pooling").input.async_scheduling);
    let drafts =
        read(r#"m --speculative-config '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'"#);
    assert_eq!((drafts.input.async_scheduling, drafts.input.num_speculative_tokens), (false, 4));
    let dotted = read("m --speculative-config.method ngram --speculative_config.num_speculative_tokens=4");
    assert_eq!(dotted.input, drafts.input);
    assert_eq!(read("m --spec-method ngram --spec-tokens 4").input, drafts.input);
    let both = errors("m --spec-method ngram --spec-tokens 4 --async-scheduling");
    assert!(both[0].contains("vLLM does not start"), "{both:?}");
}

/// Methods, methods that vLLM detects from a drafter's name, and former names of methods.
#[test]
fn drafters_become_options() {
    let of = |config: &str| {
        let input = read(&format!("m --speculative-config '{{{config}, \"num_speculative_tokens\": 3}}'")).input;
        assert_eq!((input.num_speculative_tokens, input.async_scheduling), (3, input.drafter != Drafter::Ngram));
        input.drafter
    };
    for (config, drafter) in [
        (r#""method": "ngram""#, Drafter::Ngram),
        (r#""method": "eagle", "model": "a/b""#, Drafter::Eagle),
        (r#""method": "eagle3", "model": "a/b", "draft_tensor_parallel_size": 1"#, Drafter::Eagle),
        (r#""model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B""#, Drafter::Eagle),
        (r#""model": "yuhuili/EAGLE-LLaMA3-Instruct-8B""#, Drafter::Eagle),
        (r#""method": "mtp""#, Drafter::Mtp),
        (r#""method": "deepseek_mtp""#, Drafter::Mtp),
        (r#""method": "qwen3_next_mtp", "disable_lookahead_block_hashes": false"#, Drafter::Mtp),
        (r#""method": "step3p5_mtp""#, Drafter::MultiModuleMtp),
        (r#""method": "draft_model", "model": "a/small""#, Drafter::DraftModel),
        (r#""model": "a/small""#, Drafter::DraftModel),
    ] {
        assert_eq!(of(config), drafter, "{config}");
    }
    let alone = r#"m --speculative-config '{"method": "mtp", "num_speculative_tokens": 1, "disable_lookahead_block_hashes": true}'"#;
    assert!(read(alone).input.disable_lookahead_block_hashes);
    assert_eq!(read("m --spec-method mtp --spec-tokens 2").input.drafter, Drafter::Mtp);
    let connector = r#"m --spec-method mtp --spec-tokens 2 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"#;
    assert!(read(connector).input.disable_lookahead_block_hashes, "as vLLM does with a connector");
    for (minor, method, is_async) in
        [("0.27", "mtp", true), ("0.27", "draft_model", false), ("0.28", "draft_model", true)]
    {
        let old = Deployment { minor, ..Deployment::default() };
        let line = format!("m --spec-method {method} --spec-tokens 2 --spec-model a/small");
        let input = VllmArgs::read(&line, old).unwrap_or_else(|errors| panic!("{minor}: {errors:?}")).input;
        assert_eq!((input.drafter.has_kv(), input.async_scheduling), (true, is_async), "{minor}: {method}");
    }
    let row = read(alone).rows.into_iter().find(|row| row.argument == "--speculative-config").expect("it has a row");
    assert!(row.result.contains("`acceptance_rates`"), "{}", row.result);
    let row = read(alone).rows.into_iter().find(|row| row.argument == "--num-gpu-blocks-override").expect("it has one");
    assert!(row.result.contains("the drafter's layers"), "{}", row.result);
    for (key, value) in [("parallel_drafting", "true"), ("disable_eagle_block_drop", "true"), ("max_model_len", "4096")]
    {
        let config = format!("{{\"method\": \"eagle\", \"num_speculative_tokens\": 2, \"{key}\": {value}}}");
        let found = errors(&format!("m --speculative-config '{config}'"));
        assert!(found[0].contains(&format!("`--speculative-config.{key}` is not simulated")), "{found:?}");
    }
    for (arguments, given) in [
        ("--spec-method ngram", "none"),
        ("--speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 0}'", "0"),
        ("--speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 1001}'", "1001"),
    ] {
        let wanted =
            format!("invalid `num_speculative_tokens`: expected 1 to 1000, got {given}; `--spec-tokens` sets it");
        assert_eq!(errors(&format!("m {arguments}")), [wanted]);
    }
}

#[test]
fn budgets_and_intervals_of_steps_are_settings() {
    let args = read("m --max-num-batched-tokens 8k --max-num-scheduled-tokens 4K --prefill-schedule-interval 4");
    let input = &args.input;
    let found = (input.max_num_batched_tokens, input.max_num_scheduled_tokens, input.prefill_schedule_interval);
    assert_eq!(found, (8000, Some(4096), 4));
    let found = errors("m --prefill-schedule-interval 0 --max-num-scheduled-tokens 0");
    assert!(found[0].contains("`--prefill-schedule-interval 0`"), "{found:?}");
    assert!(found[1].contains("`--max-num-scheduled-tokens 0`"), "{found:?}");
}

#[test]
fn what_would_change_decisions_is_refused_with_its_reason() {
    for (arguments, expected) in [
        ("--scheduler-cls a.B", "`--scheduler-cls a.B` is not simulated"),
        ("--enable-dbo", "`--enable-dbo` is not simulated"),
        (
            "--speculative-config '{\"model\": \"a/qwen3-dflash\", \"num_speculative_tokens\": 2}'",
            "`speculation with a/qwen3-dflash` is not simulated: ngram, eagle, eagle3, mtp and draft_model are",
        ),
        (
            "--kv-transfer-config '{\"kv_connector\": \"LMCacheConnectorV1\"}'",
            "of the connectors NixlConnector (the link of a disaggregated cluster), OffloadingConnector",
        ),
        ("--kv-offloading-size 1 --kv-offloading-backend lmcache", "of the backends native is known"),
        (
            "--kv-transfer-config '{\"kv_connector\": \"OffloadingConnector\", \"kv_connector_extra_config\": \
             {\"cpu_bytes_to_use\": 1e9, \"block_size\": 64}}'",
            "of `kv_connector_extra_config` cpu_bytes_to_use, eviction_policy",
        ),
        ("--config file.yaml", "invalid `--config file.yaml`: No such file or directory"),
    ] {
        let found = errors(&format!("m {arguments}"));
        assert!(found[0].contains(expected), "{arguments}: {found:?}");
    }
    // These arguments have their defaults, so they change nothing.
    let args = read(
        "m -pp 1 --stream-interval 1 --prefill-schedule-interval 1 --no-enable-dbo --scheduler-cls None --ubatch-size 0",
    );
    assert_eq!(args.input, read("m").input);
}

/// The host has `size / (bytes of a block on all GPUs)` blocks, as in vLLM's `CPUOffloadingSpec`.
#[test]
fn offloading_is_read_as_vllm_has_it() {
    // A token of this model has 128 KiB of KV, so a block of 16 tokens has 2 MiB.
    let model = "meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192";
    let tiers = |arguments: &str| read(&format!("{model} {arguments}")).input.kv_tiers.expect("it offloads");
    let sized = tiers("--kv-offloading-size 10 --kv-offloading-backend native");
    assert_eq!((sized.host_blocks, sized.kv_bytes_per_token, sized.disk_blocks), (5_120, 131_072, 0));
    assert_eq!((sized.rules, sized.offload_prompt_only), (HostRules::Vllm, true));
    let split = tiers("--kv-offloading-size 10 -tp 2");
    assert_eq!((split.host_blocks, split.kv_bytes_per_token), (5_120, 65_536), "in all, and of each GPU");
    let offloading = r#"{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
        {"cpu_bytes_to_use": 10737418240, "eviction_policy": "arc", "store_threshold": 2, "offload_prompt_only": false}}"#;
    let stated = tiers(&format!("--kv-transfer-config '{offloading}'"));
    assert_eq!((stated.host_blocks, stated.eviction_policy, stated.store_threshold), (5_120, EvictionPolicy::Arc, 2));
    assert!(!stated.offload_prompt_only);
    let multi = format!(
        r#"--kv-transfer-config '{{"kv_connector": "MultiConnector", "kv_connector_extra_config": {{"connectors":
        [{{"kv_connector": "NixlConnector"}}, {offloading}]}}}}'"#
    );
    assert_eq!(tiers(&multi), stated);
    assert_eq!(
        read(&format!("{model} --kv-transfer-config '{{\"kv_connector\": \"NixlConnector\"}}'")).input.kv_tiers,
        None
    );
    for (line, expected) in [
        ("some/model --kv-offloading-size 10", "expected a model that is known"),
        ("meta-llama/Llama-3.1-8B-Instruct --kv-offloading-size 0.001", "expected at least one KV block of 0.00 GiB"),
        ("meta-llama/Llama-3.1-8B-Instruct --kv-offloading-size -1", "expected a number of GiB above 0"),
    ] {
        let found = errors(line);
        assert!(found[0].contains(expected), "{line}: {found:?}");
    }
    let old = Deployment { minor: "0.31", ..Deployment::default() };
    let refused =
        VllmArgs::read(&format!("{model} --kv-offloading-size 10"), old).expect_err("its rules are not known");
    assert!(refused[0].to_string().contains("vLLM 0.32 and 0.33"), "{refused:?}");
}

/// Two slots for adapters of rank 16 take 2 x 84 MB, as much as two files of adapters for all layers.
#[test]
fn adapters_take_memory_from_the_kv_cache() {
    let blocks = |arguments: &str| {
        let line = format!("meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 {arguments}");
        read(&line).fit().expect("it fits").num_gpu_blocks
    };
    let (none, two) = (blocks(""), blocks("--enable-lora --max-loras 2"));
    // Each layer has 81,920 rows and columns of rank 16 with two bytes per value. A block of 16 tokens has 2 MiB.
    let bytes = 2.0 * 32.0 * 81_920.0 * 16.0 * 2.0;
    assert!((f64::from(none - two) - bytes / f64::from(2 << 20)).abs() <= 1.0, "{none} and {two}");
    let large = blocks("--enable-lora --max-loras 2 --max-lora-rank 64");
    assert!((f64::from(none - large) - 4.0 * bytes / f64::from(2 << 20)).abs() <= 1.0, "{none} and {large}");
    assert_eq!(blocks("--max-lora-rank 64"), none, "without adapters");
}

#[test]
fn mistakes_are_all_named() {
    let found = errors(
        "vllm serve m --max-num-sequences 3 --max-num 4 --block-size x --watermark 2 --enable-lora=yes other --seed",
    );
    assert_eq!(
        found,
        [
            "unknown argument `--max-num-sequences`: did you mean `--max-num-seqs`?",
            "ambiguous argument `--max-num`: it may be --max-num-active-seqs, --max-num-batched-tokens, \
             --max-num-scheduled-tokens, --max-num-seqs, --max-num-queued-reqs, --max-num-queued-tokens",
            "invalid `--enable-lora=yes`: expected `--enable-lora` or `--no-enable-lora` alone",
            "invalid argument `other`: expected one model, here `m`, and arguments that begin with `-`",
            "invalid `--seed`: expected a value after it",
            "invalid `--block-size x`: expected a whole number from 1 to 4294967295",
            "invalid `--watermark 2`: expected a share from 0 to below 1",
        ]
    );
}

#[test]
fn versions_have_arguments_of_their_own() {
    let old = Deployment { minor: "0.30", ..Deployment::default() };
    let found = VllmArgs::read("m --max-num-active-seqs 3", old).expect_err("0.31 added it");
    assert_eq!(found[0].to_string(), "vLLM 0.30 has no `--max-num-active-seqs`: it is there since 0.31");
    assert_eq!(found.len(), 1);
    let found = VllmArgs::read("m", Deployment { minor: "0.40", ..old }).expect_err("it is not known");
    assert_eq!(
        found[0].to_string(),
        "invalid vLLM version `0.40`: expected one of 0.27, 0.28, 0.29, 0.30, 0.31, 0.32, 0.33"
    );
    let found = VllmArgs::read("m", Deployment { gpu: "h900", ..old }).expect_err("it is not known");
    assert!(found[0].to_string().starts_with("invalid GPU `h900`: expected one of a10, a100-40gb"), "{found:?}");
    assert_eq!(errors("vllm serve 'm"), ["invalid command line: expected every quotation mark to be closed"]);
    assert_eq!(
        errors("vllm bench serve"),
        ["invalid command `vllm`: expected `vllm serve MODEL ...` or only its arguments"]
    );
    for container in ["docker run --gpus all mine m", "docker run --entrypoint=sh vllm/vllm-openai -c ls"] {
        let expected = "expected the image `vllm/vllm-openai`, or `vllm serve` with what follows the image";
        assert_eq!(errors(&format!("A=1 {container}")), [format!("invalid command `docker`: {expected}")]);
    }
    assert_eq!(
        errors("A=1 bench serve"),
        ["invalid command `bench`: expected `vllm serve MODEL ...` or only its arguments"]
    );
    let found = errors("m --max-model-len auto");
    assert!(found[0].contains("only a known model decides what fits"), "{found:?}");
}

#[test]
fn stages_and_ranks_are_settings_of_the_engine() {
    let args = read("m -tp 8 -pp 4 -dcp 2 --dcp-kv-cache-interleave-size 8");
    let input = &args.input;
    assert_eq!((input.pipeline_parallel_size, input.decode_context_parallel_size), (4, 2));
    assert!(input.async_scheduling, "the second model runner has it with several stages");
    let row = |name: &str| args.rows.iter().find(|row| row.argument == name).map(|row| row.result.clone());
    assert_eq!(row("--pipeline-parallel-size").as_deref(), Some("pipeline_parallel_size: 4"));
    assert!(row("--dcp-kv-cache-interleave-size").is_some_and(|result| result.contains("no decision")));
    let copies = read("m -tp 2 -pcp 4 -dcp 8");
    assert_eq!((copies.prefill_context_parallel_size, copies.input.decode_context_parallel_size), (4, 8));
    let old = Deployment { minor: "0.28", ..Deployment::default() };
    let old = VllmArgs::read("m -pp 2", old).expect("it is valid");
    assert!(!old.input.async_scheduling, "{:?}", old.rows);
    for (arguments, expected) in [
        (
            "-tp 4 -dcp 3",
            "invalid `--decode-context-parallel-size 3`: expected a divisor of `--tensor-parallel-size` (4)",
        ),
        ("-tp 2 -pcp 4 -dcp 2", "expected 1, 4 or 8 with `--prefill-context-parallel-size 4`"),
        ("-tp 2 -dcp 2 --cp-kv-cache-interleave-size 5", "expected a divisor of `--block-size` (16)"),
        ("-pp 0", "a whole number from 1"),
    ] {
        let found = errors(&format!("m {arguments}"));
        assert!(found[0].contains(expected), "{arguments}: {found:?}");
    }
    // The order of tokens within a block of one rank has no effect.
    assert_eq!(read("m --cp-kv-cache-interleave-size 5").input, read("m").input);
}

#[test]
fn drafts_may_depend_on_the_size_of_the_batch() {
    let line = |ranges: &str| {
        let key = "num_speculative_tokens_per_batch_size";
        format!(
            "m --speculative-config '{{\"method\": \"ngram\", \"num_speculative_tokens\": 3, \"{key}\": {ranges}}}'"
        )
    };
    let args = read(&line("[[1, 8, 3], [32, 128, 1]]"));
    let found: Vec<_> = args.input.draft_ranges.iter().map(|range| (range.first, range.last, range.tokens)).collect();
    assert_eq!(found, [(1, 8, 3), (32, 128, 1)]);
    assert!(read(&line("null")).input.draft_ranges.is_empty());
    for ranges in ["[]", "[[1, 8]]", "[1, 8, 2]", "\"1-8:2\"", "[[1, 8, -1]]"] {
        let found = errors(&line(ranges));
        assert!(found[0].contains("--speculative-config.num_speculative_tokens_per_batch_size"), "{ranges}: {found:?}");
    }
    // Ranks would have different numbers of drafts, but vLLM uses the same number for all ranks.
    assert!(read(&format!("{} -dp 2", line("[[1, 8, 2]]"))).input.draft_ranges.is_empty());
}

/// Prefix caching decides which states vLLM keeps, whatever the arguments say. Up to 0.31, it can keep all states.
#[test]
fn states_that_are_kept() {
    let at = |minor: &'static str, command: &str| {
        let read = VllmArgs::read(command, Deployment { minor, ..Deployment::default() });
        let texts = |errors: Vec<_>| errors.iter().map(ToString::to_string).collect::<Vec<String>>().join("; ");
        read.map(|args| args.input.mamba_cache_mode).map_err(texts)
    };
    for minor in ["0.27", "0.31", "0.32", "0.33"] {
        for command in ["m", "m --mamba-cache-mode none", "m --mamba-cache-mode align", "m --mamba-block-size 64"] {
            assert_eq!(at(minor, command), Ok(MambaCacheMode::None), "{minor}: {command}");
        }
    }
    assert_eq!(at("0.31", "m --mamba-cache-mode all"), Ok(MambaCacheMode::All));
    assert_eq!(at("0.31", "m --mamba-cache-mode all --no-enable-prefix-caching"), Ok(MambaCacheMode::None));
    assert_eq!(
        at("0.32", "m --mamba-cache-mode all"),
        Err("invalid `--mamba-cache-mode all`: expected `none` or `align`".to_owned())
    );
    let linear = "Qwen/Qwen3.5-27B --mamba-cache-mode all";
    assert_eq!(at("0.31", linear), Ok(MambaCacheMode::None), "its layers cannot keep them");
    let mamba = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
    for (minor, more) in [("0.31", "--mamba-cache-mode all"), ("0.27", "")] {
        let error = at(minor, &format!("{mamba} {more}")).expect_err("the length of its blocks is not known");
        assert!(error.contains("say `--mamba-cache-mode align`"), "{error}");
    }
    assert_eq!(at("0.27", &format!("{mamba} --mamba-cache-mode align")), Ok(MambaCacheMode::None));
    assert_eq!(at("0.28", mamba), Ok(MambaCacheMode::None));
    let uncached = "m --mamba-block-size 64 --no-enable-prefix-caching";
    let error = at("0.33", uncached).expect_err("vLLM does not start");
    assert!(error.contains("expected `--enable-prefix-caching` with it"), "{error}");
    let both = at("0.31", "m --mamba-block-size 64 --mamba-cache-mode all").expect_err("it changes blocks");
    assert!(both.contains("say `--block-size`"), "{both}");
}
