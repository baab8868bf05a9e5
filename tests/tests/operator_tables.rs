//! `vcr tables` and users of the tables, with a generated package that has no rows.

use std::fs;
use std::process::Command;

use vcr_tests::{Folder, Said, vcr};

/// A package with a system, a damaged table, and a model.
fn package() -> Folder {
    let folder = Folder::new();
    for inner in ["systems/data/gpu/gemm/vllm/1.0", "model_configs"] {
        fs::create_dir_all(folder.path().join(inner)).expect("a temporary folder is writable");
    }
    let system = "data_dir: data/gpu\ngpu: {mem_bw: 1.0e12, bfloat16_tc_flops: 1.0e14}\n\
                  node: {num_gpus_per_node: 8, intra_node_bw: 1.0e11, inter_node_bw: 1.0e10}\n";
    folder.write("systems/gpu.yaml", system);
    folder.write("systems/data/gpu/gemm/vllm/1.0/gemm_perf.parquet", "PAR1 and nothing more");
    let model = r#"{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}"#;
    folder.write("model_configs/us--dense_config.json", model);
    folder
}

#[test]
fn systems_backends_versions_and_models_are_listed() {
    let folder = package();
    let said = folder.vcr(&["tables", "list", "--data", "."]).ended(0);
    let words: Vec<&str> = said.stdout.split_whitespace().collect();
    for word in ["gpu", "vllm", "1.0", "us/dense"] {
        assert!(words.contains(&word), "no `{word}` in:\n{}", said.stdout);
    }
    let listed = folder.vcr(&["tables", "list", "--data", ".", "--json"]).ended(0).json();
    assert_eq!(listed["models"][0], "us/dense");
    assert_eq!(listed["systems"][0]["backends"][0]["versions"][0], "1.0");
}

#[test]
fn a_damaged_table_is_named_with_what_to_do() {
    let folder = package();
    let needles = ["gemm_perf.parquet", "expected a Parquet file", "pip install aiconfigurator-core"];
    folder.vcr(&["tables", "show", "gpu", "--data", "."]).failed(2, &needles);
    folder.vcr(&["tables", "check", "gpu", "us/dense", "--data", "."]).failed(2, &needles);
    folder.vcr(&["tables", "price", "gpu", "us/dense", "--data", ".", "--steps", "-"]).failed(2, &needles);
    folder.write("test.rhai", "tables(#{ data: \".\", system: \"gpu\", model: \"us/dense\" });");
    folder.run(&[]).failed(2, &["test.rhai:1:1", "gemm_perf.parquet"]);
}

#[test]
fn a_package_that_is_missing_is_named_with_how_to_get_it() {
    let mut command = Command::new(vcr());
    Said::of(command.args(["tables", "list"]).env_remove("VCR_TABLES"))
        .failed(2, &["missing --data", "pip install", "name its folder with --data or VCR_TABLES"]);
    let folder = Folder::new();
    folder
        .vcr(&["tables", "list", "--data", "nowhere"])
        .failed(2, &["invalid --data `nowhere`", "there is no such folder", "pip install"]);
    let mut command = Command::new(vcr());
    Said::of(command.args(["tables", "list"]).env("VCR_TABLES", folder.path()))
        .failed(2, &["invalid VCR_TABLES `", "it has no `systems/data`", "pip install"]);
}

#[test]
fn scenarios_know_the_options_and_refuse_others() {
    let folder = package();
    folder.write("test.rhai", "tables(#{ data: \".\", model: \"us/dense\", tensor_paralel: 2 });");
    let needles =
        ["`tables` needs the option `system`", "no option `tensor_paralel`", "did you mean `tensor_parallel`?"];
    folder.run(&[]).failed(2, &needles);
    let scales = "tables(#{ data: \".\", system: \"gpu\", model: \"us/dense\", scale: 0, prompt_scale: -1.5 });";
    folder.write("test.rhai", scales);
    let needles = ["invalid `scale`: expected above 0, got 0", "invalid `prompt_scale`: expected above 0, got -1.5"];
    folder.run(&[]).failed(2, &needles);
    folder.write("test.rhai", "tables(#{ data: \".\", system: \"gpo\", model: \"us/dense\" });");
    folder.run(&[]).failed(2, &["invalid system `gpo`: expected one of gpu"]);
}
