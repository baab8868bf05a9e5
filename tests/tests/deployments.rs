//! `deployment(...)`: mistakes, the choice of a latency model, and GPUs and cost in outputs.

use std::process::Command;

use vcr_tests::{Folder, Said, vcr};

fn script(deployment: &str, pool: &str) -> String {
    format!(
        r#"let d = {deployment};
let c = cluster(#{{ engines: pool(#{{ deployment: d {pool} }}) }});
let r = run(#{{ cluster: c, workloads: [ burst(#{{ count: 4, prompt_tokens: 300, output_tokens: 20 }}) ] }});
check("seen", true, `${{d.gpus}} ${{d.gpu}} ${{d.model}} ${{d.latency}} ${{d.price_per_hour}} ${{d.cost_per_hour}}`);
"#
    )
}

const LLAMA: &str = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192";

#[test]
fn mistakes_have_their_place_the_numbers_and_the_nearest_name() {
    let of = |command: &str, options: &str| format!(r#"deployment("{command}", #{{ {options} }})"#);
    let roofline = r#"gpu: "h100", latency: "roofline""#;
    for (deployment, pool, words) in [
        (of(LLAMA, ""), "", &["1:9: `deployment` needs the option `gpu`"][..]),
        (format!(r#"deployment("{LLAMA}")"#), "", &["`deployment` needs the option `gpu`"]),
        (of(LLAMA, r#"gpu: "h10""#), "", &["invalid `gpu` \"h10\": did you mean"]),
        (of(LLAMA, r#"gpu: "h100", latencyy: "roofline""#), "", &["no option `latencyy`", "did you mean `latency`?"]),
        (
            of(LLAMA, r#"gpu: "h100", latency: "roofine""#),
            "",
            &["invalid `latency` \"roofine\"", "did you mean `roofline`?"],
        ),
        (of(LLAMA, r#"gpu: "h100", latency: "none.json""#), "", &["cannot read", "none.json"]),
        (of(LLAMA, r#"gpu: "h100", latency: 7"#), "", &["invalid `latency`: expected a latency model", "the number 7"]),
        (
            of(LLAMA, r#"gpu: "h100", price_per_hour: -1"#),
            "",
            &["invalid `price_per_hour`: expected at least 0, got -1"],
        ),
        (
            of(LLAMA, r#"gpu: "h100", pipeline_parallel_size: 2"#),
            "",
            &["(`--pipeline-parallel-size`): leave `pipeline_parallel_size` out"],
        ),
        (
            of(LLAMA, r#"gpu: "h100", kv_cache_groups: []"#),
            "",
            &["it follows from the model: leave `kv_cache_groups` out"],
        ),
        (of("vllm serve -tp 2", roofline), "", &["expected a model: `vllm serve MODEL ...`"]),
        (of("vllm serve my/model", roofline), "", &["unknown model `my/model`", "a folder with one"]),
        (of(&format!("{LLAMA} --max-num-sequences 3"), roofline), "", &["did you mean `--max-num-seqs`?"]),
        (
            of("vllm serve meta-llama/Llama-3.1-70B-Instruct", roofline),
            "",
            &["131.41 GiB of weights", "79.20 GiB x 0.92"],
        ),
        (
            of(
                "vllm serve meta-llama/Llama-3.1-70B-Instruct --num-gpu-blocks-override 100 --max-model-len 1k",
                roofline,
            ),
            "",
            &["131.41 GiB of weights"],
        ),
        (
            of("vllm serve meta-llama/Llama-3.1-8B-Instruct", r#"gpu: "l4", latency: "roofline""#),
            "",
            &["16.00 GiB KV cache is needed", "estimated maximum model length"],
        ),
        (
            of("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 16", roofline),
            "",
            &["each layer is on 16 GPUs, but a node has 8 x h100-sxm", "state `gpus_per_node`"],
        ),
        (
            of(
                &format!("{LLAMA} -tp 2"),
                r#"gpu: "h100", latency: roofline(#{ model: "llama-3.1-8b", gpu: "h100", tensor_parallel: 4 })"#,
            ),
            "",
            &[
                "engine and latency model disagree in the number of GPUs that share each layer: 2 by",
                "`--tensor-parallel-size 2` of `deployment`",
            ],
        ),
        (of(LLAMA, roofline), ", engine: engine(#{})", &["2:", "`engine` follows from `deployment`"]),
        (of(LLAMA, roofline), r#", latency: fixed(#{ step: "1ms" })"#, &["`latency` follows from `deployment`"]),
        (of(LLAMA, roofline), ", data_parallel_size: 2", &["`data_parallel_size` follows from `deployment`"]),
        ("engine(#{})".to_owned(), "", &["2:37: invalid `deployment`: expected deployment(", "got an engine"]),
    ] {
        Folder::with(&script(&deployment, pool)).run(&[]).failed(2, words);
    }
}

/// Runs a deployment with the operator tables in a folder, or without tables.
fn with_tables(latency: &str, folder: Option<&str>) -> Said {
    let deployment = format!(r#"deployment("{LLAMA} -tp 2", #{{ gpu: "h100" {latency} }})"#);
    let run = Folder::with(&script(&deployment, ""));
    let mut command = Command::new(vcr());
    command.args(["run", "test.rhai", "--json"]).current_dir(run.path()).env_remove("VCR_TABLES");
    folder.into_iter().for_each(|folder| _ = command.env("VCR_TABLES", folder));
    Said::of(&mut command)
}

#[test]
fn the_latency_model_is_the_best_known_one_and_the_report_says_why() {
    let chosen = with_tables("", None).ended(0).json();
    let deployment = &chosen["runs"][0]["deployments"][0];
    assert_eq!(deployment["latency"], "roofline");
    assert_eq!(deployment["latency_reason"], "no tables: `VCR_TABLES` does not name their folder");
    assert_eq!(
        chosen["assertions"][0]["observed_text"],
        "2 h100-sxm meta-llama/Llama-3.1-8B-Instruct roofline 6.155 12.31"
    );
    let stated = with_tables(r#", latency: "roofline""#, None).ended(0).json();
    assert_eq!(stated["runs"][0]["deployments"][0]["latency_reason"], serde_json::Value::Null);
    assert_eq!(stated["fingerprint"], chosen["fingerprint"]);
    with_tables(r#", latency: "tables""#, None).failed(2, &["`tables`: `VCR_TABLES` does not name their folder"]);
    let wrong = with_tables("", Some("nowhere")).ended(0).stderr;
    assert!(wrong.contains("no operator tables: invalid VCR_TABLES `nowhere`: there is no such folder"), "{wrong}");
}

#[test]
fn gpus_and_cost_are_in_the_summary_the_page_and_the_metrics() {
    let script = script(
        &format!(r#"deployment("{LLAMA}", #{{ gpu: "h100", latency: "roofline", price_per_hour: 2.5 }})"#),
        ", engines: 2",
    );
    let folder = Folder::with(&format!("{script}expect(r, \"cost_per_hour\", \"value < $6\");\n"));
    let said = folder.run(&["--out", "out"]).ended(0).stdout;
    for words in [
        "GPUs: 2.0 on average, $5.00 per hour, $",
        "1 x h100-sxm for each engine, times by roofline, $2.50 for a GPU and hour (stated)",
    ] {
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(words), "no `{words}` in:\n{said}");
    }
    assert!(said.contains("$5.00") && said.contains("17 % left"), "{said}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("it was written");
    let page = read("out/report.html");
    assert!(page.contains("GPUs: 2.0 on average, $5.00 per hour"), "the page has them");
    let metrics = read("out/openmetrics.txt");
    assert!(metrics.contains("vcr_gpus{") && metrics.contains("vcr_cost_per_hour_usd{"), "{metrics}");
}

#[test]
fn a_cost_that_cannot_be_known_is_found_before_any_run() {
    let words = "`cost` of the run `run` is not known: the pool `engines` has no `deployment: deployment(...)`";
    let check = |ask: &str| {
        let folder = Folder::with(&format!(
            r#"let c = cluster(#{{ engines: pool(#{{ latency: fixed(#{{ step: "1ms" }}) }}) }});
let r = run(#{{ cluster: c, workloads: [ burst(#{{ count: 4, prompt_tokens: 300, output_tokens: 20 }}) ] }});
{ask};
"#
        ));
        folder.vcr(&["check", "test.rhai"])
    };
    check(r#"expect(r, "cost", "value < 1")"#).failed(2, &[&format!("3:1: {words}")]);
    // If a script computes with results, the check covers as much as possible.
    let warned = check(r#"value(r, "cost", "value")"#).ended(0).stderr;
    assert!(warned.contains(words), "{warned}");
}
