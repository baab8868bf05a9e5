//! Recordings that use features which the core lacks are refused, with the feature's name.

use serde_json::{Value, json};
use vcr_steplog::LogError;

use crate::recordings::{CaseCopy, with_text, with_value};

const SCHEDULER: &str = "random-0.33/random-1-057";
const DRAFTER: &str = "drafters/any-2-034-0.33";
const LIVE: &str = "vllm-cpu/wire";
const LIVE_WITH_PREEMPTIONS: &str = "vllm-cpu/burst-preempt";

/// Asserts that a recording is refused, and that the error contains these words and names the documentation.
#[track_caller]
fn refused(copy: &CaseCopy, words: &[&str]) {
    let error = copy.replay().expect_err("the recording is refused");
    assert!(matches!(error, LogError::OutOfScope { .. }), "{error}");
    let message = error.to_string();
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} are not all in: {message}");
    assert!(message.ends_with("this is out of scope, see docs/appendix/scope.md"), "{message}");
}

#[track_caller]
fn refused_config(edit: impl FnOnce(&mut Value), words: &[&str]) {
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_json("config.json", edit);
    refused(&copy, &[&["config.json: "], words].concat());
}

#[test]
fn settings_of_a_scheduler_that_are_not_known() {
    refused_config(|file| file["config"]["sliding_window"] = json!(64), &["`config.sliding_window`", "not known here"]);
    refused_config(
        |file| file["config"]["effective"]["page_size"] = json!(8),
        &["`effective.page_size`", "not known here"],
    );
    refused_config(|file| file["vllm"] = json!("0.26.2"), &["vLLM \"0.26.2\"", "0.27 to 0.33"]);
    refused_config(|file| file["batch_queue"] = json!(4), &["`batch_queue` is 4"]);
}

#[test]
fn a_scheduler_that_is_another_or_held_other_values() {
    let effective = |key: &'static str, value: Value, words: &[&str]| {
        let name = format!("`effective.{key}` is {value}, where ");
        refused_config(|file| file["config"]["effective"][key] = value, &[&[name.as_str()], words].concat());
    };
    effective("scheduler", json!("MyScheduler"), &["vLLM's two classes"]);
    effective("draft_slots", json!(1), &["follows from the drafter"]);
    effective("num_lookahead_tokens", json!(3), &["follows from the drafter"]);
    effective("max_num_scheduled_tokens", json!(7), &["another value than requested"]);
    effective("watermark_blocks", json!(99), &["another value than requested"]);
    effective("policy", json!("lifo"), &["another value"]);
    effective("free_blocks", json!(3), &["null block"]);
    // The class of vLLM's scheduler differs with async scheduling.
    let other = |class: &str| if class == "Scheduler" { "AsyncScheduler" } else { "Scheduler" };
    refused_config(
        |file| {
            let class = file["config"]["effective"]["scheduler"].as_str().expect("it names a class");
            file["config"]["effective"]["scheduler"] = other(class).into();
        },
        &["`effective.scheduler` is "],
    );
}

/// The settings that a scheduler derives from its drafter must equal those derived here.
#[test]
fn drafters_that_are_not_known_or_that_do_other_things() {
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_json("config.json", |file| file["config"]["drafter"] = json!("dflash"));
    assert!(copy.error().contains("`config.drafter` is \"dflash\": not known here"), "{}", copy.error());
    for (key, value) in [
        ("num_prefill_lookahead", json!(9)),
        ("num_hash_lookahead_tokens", json!(9)),
        ("dropping_groups", json!([7])),
        ("num_lookahead_tokens", json!(0)),
    ] {
        let copy = CaseCopy::of(DRAFTER);
        copy.edit_json("config.json", |file| file["config"]["effective"][key] = value);
        refused(&copy, &[&format!("`effective.{key}` is "), "follows from the drafter"]);
    }
}

#[test]
fn requests_and_steps_with_more_than_is_known() {
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_line("requests.jsonl", 3, |line| line.replacen('{', "{\"min_tokens\":4,", 1));
    refused(&copy, &["requests.jsonl, line 3: `min_tokens` of request "]);

    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_line("steps.jsonl", 5, |line| line.replacen('{', "{\"encoder\":[],", 1));
    refused(&copy, &["steps.jsonl, line 5: `encoder` of a step "]);
}

#[track_caller]
fn refused_head(key: &str, value: &str, words: &[&str]) {
    let copy = CaseCopy::of(LIVE);
    copy.edit_line("steps.jsonl", 1, |line| {
        let line = line.replace("\": ", "\":");
        with_text(&line, key, |_| Some(value.to_owned()))
            .unwrap_or_else(|| line.replacen('{', &format!("{{\"{key}\":{value},"), 1))
    });
    refused(&copy, &[&["steps.jsonl, line 1: ", key], words].concat());
}

#[test]
fn a_live_scheduler_that_does_more() {
    refused_head("hash_block_size", "16", &["`block_size` 32"]);
    refused_head("sparse_cache", "3", &["not known here"]);
    refused_head("num_spec_tokens", "3", &["`speculative_config`"]);
    refused_head("num_lookahead_tokens", "3", &["is 3, where 0 is expected", "the drafter"]);
    refused_head("num_hash_lookahead_tokens", "1", &["is 1, where 0 is expected", "the drafter"]);
    refused_head("drafter", "\"dflash\"", &["`drafter` is \"dflash\"", "not known here"]);
    refused_head("groups", "[{\"kind\":\"CrossAttentionSpec\",\"block_size\":32}]", &["CrossAttentionSpec"]);
    refused_head(
        "groups",
        "[{\"kind\":\"sliding_window\",\"block_size\":64,\"window\":9},{\"kind\":\"full\",\"block_size\":32}]",
        &["`block_size` is 32, where 64 is expected"],
    );
    refused_head("free_blocks_at_start", "1000", &["1023"]);
}

#[test]
fn a_live_request_whose_prompt_goes_on() {
    let copy = CaseCopy::of(LIVE);
    copy.edit_line("steps.jsonl", 2, |line| line.replacen("\"prompt\":", "\"resumable\":true,\"prompt\":", 1));
    refused(&copy, &["steps.jsonl, line 2: `resumable` of request ", "streaming inputs"]);
}

#[track_caller]
fn refused_args(args: &Value, words: &[&str]) {
    let copy = CaseCopy::of(LIVE);
    copy.edit_json("engine.json", |file| {
        let all = file["engine_args"].as_object_mut().expect("there are arguments");
        all.extend(args.as_object().expect("arguments have names").clone());
    });
    refused(&copy, &[&["engine.json: `engine_args."], words].concat());
}

#[test]
fn arguments_of_a_live_engine() {
    let connector = json!({ "kv_connector": "NixlConnector", "kv_role": "kv_both" });
    refused_args(&json!({ "kv_transfer_config": connector }), &["kv_transfer_config`", "a KV connector"]);
    refused_args(&json!({ "kv-offloading-size": 4.0 }), &["kv-offloading-size`", "offloads"]);
    refused_args(&json!({ "pipeline_parallel_size": 2 }), &["pipeline_parallel_size` is 2", "pipeline parallelism"]);
    refused_args(&json!({ "decode_context_parallel_size": 2 }), &["decode_context_parallel_size` is 2"]);
    refused_args(
        &json!({ "prefill_schedule_interval": 4, "data_parallel_size": 2 }),
        &["prefill_schedule_interval`", "ranks count together"],
    );
    refused_args(&json!({ "diffusion_config": { "steps": 8 } }), &["diffusion_config`"]);
    for method in ["eagle", "eagle3", "mtp", "deepseek_mtp", "draft_model", "medusa"] {
        let config = json!({ "method": method, "num_speculative_tokens": 3 });
        refused_args(&json!({ "speculative_config": config }), &["speculative_config", method, "look ahead"]);
        let text = config.to_string();
        refused_args(&json!({ "speculative_config": text }), &["speculative_config", method, "look ahead"]);
    }
    refused_args(&json!({ "speculative_config": { "model": "some/draft" } }), &["names no `method`"]);
    refused_args(&json!({ "spec_method": "mtp" }), &["mtp"]);
    let by_batch = json!({ "method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 3]] });
    refused_args(&json!({ "speculative_config": by_batch }), &["num_speculative_tokens_per_batch_size"]);
}

/// vLLM up to 0.28 may schedule more drafts than tokens, but no model accepts them.
#[test]
fn more_drafts_than_tokens() {
    let copy = CaseCopy::of("releases/drafts-at-the-end-0.28");
    copy.edit_line("steps.jsonl", 2, |line| line.replacen("[1,5,30,", "[1,4,30,", 1));
    refused(&copy, &["steps.jsonl, line 2: `sched` has 4 drafts among 4 tokens of request 1"]);
}

/// Arguments that are off are no reason to refuse a recording.
#[test]
fn arguments_that_are_off() {
    let copy = CaseCopy::of(LIVE);
    copy.edit_json("engine.json", |file| {
        let args = file["engine_args"].as_object_mut().expect("there are arguments");
        args.insert("kv_transfer_config".to_owned(), Value::Null);
        args.insert("kv_offloading_size".to_owned(), json!(0));
        args.insert("pipeline_parallel_size".to_owned(), json!(1));
        args.insert("speculative_config".to_owned(), json!({}));
        args.insert("some_other_argument".to_owned(), json!("text"));
    });
    assert_eq!(copy.replay().expect("it can be replayed").mismatch, None);
    // A drafter without its own KV that proposed nothing.
    let ngram = json!({ "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4 });
    for config in [ngram.clone(), json!(ngram.to_string()), json!({ "model": "[ngram]" })] {
        copy.edit_json("engine.json", |file| file["engine_args"]["speculative_config"] = config);
        assert_eq!(copy.replay().expect("it can be replayed").mismatch, None);
    }
}

#[track_caller]
fn refused_event(key: &str, value: Value, words: &[&str]) {
    let copy = CaseCopy::of(LIVE);
    let line = copy.edit_first("kv_events.jsonl", |line| {
        with_value(line, "batch", |batch| {
            batch[1][0][key] = value.clone();
            true
        })
    });
    let place = format!("kv_events.jsonl, line {line}: `{key}`");
    refused(&copy, &[&[place.as_str()], words].concat());
}

#[test]
fn layers_of_other_kinds() {
    refused_event(
        "kv_cache_spec_kind",
        json!("sliding_window"),
        &["layers other than full_attention or mla_attention"],
    );
    refused_event("kv_cache_spec_kind", json!("mamba"), &["layers other than full_attention"]);
    refused_event("group_idx", json!(1), &["the engine has 1 of the groups"]);
    refused_event("medium", json!("CPU"), &["elsewhere than on the GPU"]);
    refused_event("block_size", json!(16), &["blocks of several sizes"]);
    refused_event("lookahead_token_ids", json!([[5]]), &["tokens after the block"]);
}

/// vLLM's second model runner gets a resumed request as a new request, so its captures have no kind "p".
#[test]
fn the_second_model_runner_of_a_live_engine() {
    let copy = CaseCopy::of(LIVE_WITH_PREEMPTIONS);
    copy.edit_line("steps.jsonl", 1, |line| {
        line.replace("\"use_v2_model_runner\": false", "\"use_v2_model_runner\": true")
    });
    let mismatch = copy.mismatch();
    assert_eq!(mismatch.field, "sched");
    assert!(
        mismatch.theirs.to_string().contains("\"p\"") && !mismatch.ours.to_string().contains("\"p\""),
        "{mismatch}"
    );

    copy.edit_all("steps.jsonl", |line| line.replace(",\"p\",", ",\"n\","));
    assert_eq!(copy.replay().expect("it can be replayed").mismatch, None);
    // Without this setting, the same capture differs.
    copy.edit_line("steps.jsonl", 1, |line| {
        line.replace("\"use_v2_model_runner\": true", "\"use_v2_model_runner\": false")
    });
    assert_eq!(copy.mismatch().field, "sched");
}

/// vLLM's hashes include an adapter's path, which no capture contains. The events are still compared, and the
/// report says that the hashes are not.
#[test]
fn hashes_of_requests_with_adapters() {
    let copy = CaseCopy::of(LIVE_WITH_PREEMPTIONS);
    let before = copy.replay().expect("it can be replayed");
    copy.edit_line("steps.jsonl", 1, |line| line.replace("\"max_loras\": null", "\"max_loras\": 1"));
    copy.edit_all("steps.jsonl", |line| line.replace("\"max_tokens\":", "\"lora\":3,\"max_tokens\":"));
    let report = copy.replay().expect("it can be replayed");
    assert_eq!((report.mismatch, report.hashes), (None, 0));
    assert_eq!((report.steps, report.events), (before.steps, before.events));
    assert!(report.notes.iter().any(|note| note.contains("adapters")), "{:?}", report.notes);
}

/// Data that the caller did not keep is unknown, not guessed. A stop takes effect in the step in which it happened.
#[test]
fn captures_without_tokens() {
    let copy = CaseCopy::of(LIVE);
    let before = copy.replay().expect("it can be replayed");
    copy.remove("tokens.jsonl");
    let report = copy.replay().expect("it can be replayed");
    assert_eq!((report.mismatch, report.steps), (None, before.steps));
    copy.remove("kv_events.jsonl");
    let report = copy.replay().expect("it can be replayed");
    assert_eq!((report.mismatch, report.events), (None, 0));
    assert_eq!(report.notes, ["no `kv_events.jsonl`, so KV events are not compared"]);
    copy.edit_json("engine.json", |file| {
        file.as_object_mut().expect("an object").remove("vllm");
    });
    let notes = copy.replay().expect("it can be replayed").notes;
    assert!(notes.iter().any(|note| note.contains("0.32 is assumed")), "{notes:?}");
}
