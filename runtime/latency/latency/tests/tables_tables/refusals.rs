//! Tests packages, models and files that cannot be used: the error names the problem and its place.

use std::fs;

use vcr_latency::tables::{Package, Source, Tables, TablesInput};

use crate::common::{Column, DENSE, EXPERTS, Fake, decodes, operator, write};

#[track_caller]
fn assert_refused(fake: &Fake, input: &TablesInput, parts: &[&str]) {
    let error = fake.refusal(input);
    let text = format!("{error}; {}", error.hint().unwrap_or_default());
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn the_package_is_found_where_pip_puts_it() {
    let fake = Fake::with_tables();
    let site = fake.path("lib/python3.12/site-packages/aiconfigurator_core");
    fs::create_dir_all(&site).unwrap();
    for folder in ["systems", "model_configs"] {
        fs::rename(fake.path(folder), site.join(folder)).unwrap();
    }
    for folder in [fake.path(""), site.parent().unwrap().to_owned(), site.clone(), site.join("systems")] {
        let package = Package::find(Some(&folder)).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        assert_eq!(package.systems(), ["gpu"], "{}", folder.display());
        assert_eq!(package.models(), ["us/dense", "us/experts", "us/latent"]);
    }
    let nowhere = Package::find(Some(&fake.path("lib"))).expect_err("it is not there");
    assert!(nowhere.to_string().contains("expected the package aiconfigurator-core"), "{nowhere}");
    assert!(nowhere.hint().unwrap().contains("pip install aiconfigurator-core"));
}

#[test]
fn names_that_do_not_exist_are_refused_with_those_that_do() {
    let fake = Fake::with_tables();
    let input = fake.input("dense");
    let system = TablesInput { system: "gpo".to_owned(), ..input.clone() };
    assert_refused(&fake, &system, &["invalid system `gpo`: expected one of gpu", "did you mean the system `gpu`?"]);
    let backend = TablesInput { backend: "sglang".to_owned(), ..input.clone() };
    assert_refused(&fake, &backend, &["invalid backend `sglang`: expected one of vllm"]);
    let model = TablesInput { model: "us/dence".to_owned(), ..input.clone() };
    assert_refused(&fake, &model, &["invalid model `us/dence`", "did you mean the model `us/dense`?"]);
    let dtype = TablesInput { gemm_dtype: Some("fp16".to_owned()), ..input };
    assert_refused(&fake, &dtype, &["invalid gemm_dtype `fp16`: expected one of bfloat16, fp8"]);
}

#[test]
fn sizes_must_fit_the_model() {
    let fake = Fake::with_tables();
    fake.experts("power_law_1.2", &[(128, 1, 1, 1, 1.0)]);
    let with = |name: &str, tensor_parallel, expert_parallel, attention_dp| TablesInput {
        tensor_parallel,
        expert_parallel,
        attention_dp,
        ..fake.input(name)
    };
    for sizes in [0, 3] {
        let text = format!("invalid `tensor_parallel`: it is {sizes}: expected a divisor of the model's 4");
        assert_refused(&fake, &with("dense", sizes, 1, 1), &[&text]);
    }
    assert_refused(&fake, &with("dense", 1, 2, 1), &["invalid `expert_parallel`", "the model has no experts"]);
    assert_refused(
        &fake,
        &with("experts", 2, 3, 1),
        &["expected a divisor of the 2 GPUs, up to the model's 8 experts"],
    );
    assert_refused(&fake, &with("experts", 1, 0, 1), &["invalid `expert_parallel`: it is 0"]);
    assert_refused(&fake, &with("experts", 1, 1, 0), &["invalid `attention_dp`: it is 0"]);
}

#[test]
fn operators_without_any_table_are_named() {
    let fake = Fake::with_tables();
    assert_refused(&fake, &fake.input("experts"), &["no tables for us/experts on gpu with vllm 1.0: missing moe"]);
    fs::remove_dir_all(fake.path("systems/data/gpu/attention")).unwrap();
    assert_refused(&fake, &fake.input("dense"), &["missing attention", "`vcr tables list`"]);
    assert_refused(&fake, &fake.input("latent"), &["missing moe, mla"]);
}

#[test]
fn rows_that_are_missing_are_priced_by_a_formula_and_counted() {
    let fake = Fake::with_tables();
    let input = TablesInput { kv_cache_dtype: Some("fp8".to_owned()), ..fake.input("dense") };
    let tables = Tables::new(&input).unwrap();
    let attention = operator(&tables, &decodes(8, 64), "attention of decodes");
    assert!(attention.of(Source::Formula) == attention.ns() && attention.ns() > 0.0, "{attention:?}");
    let input = TablesInput { gemm_dtype: Some("nvfp4".to_owned()), ..fake.input("dense") };
    let qkv = operator(&Tables::new(&input).unwrap(), &decodes(8, 64), "qkv projection");
    assert!(qkv.of(Source::Formula) == qkv.ns(), "{qkv:?}");
}

#[test]
fn broken_files_are_named_with_what_is_wrong() {
    let fake = Fake::with_tables();
    let path = fake.table("gemm", "1.0", "gemm_perf");
    let name = path.display().to_string();
    let whole = fs::read(&path).unwrap();
    let install = "pip install aiconfigurator-core==0.12.0 --force-reinstall";
    for bytes in [&b"no parquet at all"[..], &[], &whole[..whole.len() / 2], &whole[..4]] {
        fs::write(&path, bytes).unwrap();
        assert_refused(&fake, &fake.input("dense"), &[&name, "expected a Parquet file", install]);
    }
    // With a damaged byte, the file is refused or the number is checked like any other.
    for at in (4..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x5a;
        fs::write(&path, damaged).unwrap();
        if let Err(error) = Tables::new(&fake.input("dense")) {
            assert!(error.to_string().contains(&name), "{at}: {error}");
        }
    }
}

#[test]
fn columns_and_rows_are_checked() {
    let fake = Fake::with_tables();
    let path = fake.table("gemm", "1.0", "gemm_perf");
    let gemm = |latency: f64, m: f64| {
        let columns = [
            ("gemm_dtype", Column::texts("bfloat16", 2)),
            ("m", Column::Numbers(vec![1.0, m])),
            ("n", Column::Counts(vec![64, 64])),
            ("k", Column::Counts(vec![64, 64])),
            ("latency", Column::Numbers(vec![1.0, latency])),
        ];
        write(&path, &columns);
    };
    for latency in [-1.0, f64::NAN, 1e12] {
        gemm(latency, 2.0);
        let text = format!("row 2: `latency` is {latency}: expected milliseconds");
        assert_refused(&fake, &fake.input("dense"), &[&text]);
    }
    gemm(1.0, 2.5);
    assert_refused(&fake, &fake.input("dense"), &["row 2: `m` is 2.5: expected a whole number"]);
    write(&path, &[("m", Column::Counts(vec![1]))]);
    assert_refused(&fake, &fake.input("dense"), &["expected a column `n` of numbers; it has m"]);
}

#[test]
fn configurations_are_checked_by_field() {
    let fake = Fake::with_tables();
    let config = |text: &str| fake.text("model_configs/us--broken_config.json", text);
    let cases: &[(String, &str)] = &[
        (DENSE.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": -2"), "`num_hidden_layers` is -2: expected"),
        (DENSE.replace("\"hidden_size\": 64,", ""), "expected a field `hidden_size` above 0"),
        (DENSE.replace("LlamaForCausalLM", "NemotronHForCausalLM"), "architecture `NemotronHForCausalLM` cannot be"),
        (DENSE.replace("architectures", "architecture"), "expected a field `architectures`"),
        (EXPERTS.replace("\"num_local_experts\": 8, ", ""), "expected a field `num_local_experts` above 0"),
        (
            DENSE.replacen('{', "{\"quantization_config\": {\"quant_method\": \"aqlm\"},", 1),
            "quantisation `aqlm` is not known",
        ),
        ("{".to_owned(), "us--broken_config.json"),
    ];
    for (text, expected) in cases {
        config(text);
        assert_refused(&fake, &fake.input("broken"), &[expected, "us--broken_config.json"]);
    }
}

#[test]
fn a_system_is_checked_by_field() {
    let fake = Fake::with_tables();
    let system = fs::read_to_string(fake.path("systems/gpu.yaml")).unwrap();
    for (from, to, expected) in [
        ("mem_bw: 1000000000000", "mem_bw: 0", "`gpu.mem_bw` is 0: expected a number above 0"),
        ("  mem_bw: 1000000000000\n", "", "missing field `mem_bw`"),
        ("num_gpus_per_node: 8", "num_gpus_per_node: 0", "`node.num_gpus_per_node` is 0"),
        ("0.000001", "-1", "`gpu.mem_empirical_constant_latency` is -1"),
    ] {
        fake.text("systems/gpu.yaml", &system.replace(from, to));
        assert_refused(&fake, &fake.input("dense"), &[expected, "gpu.yaml"]);
    }
}

#[test]
fn systems_have_the_names_of_gpus() {
    let fake = Fake::with_tables();
    fs::copy(fake.path("systems/gpu.yaml"), fake.path("systems/h100_sxm.yaml")).expect("it is writable");
    fs::create_dir_all(fake.path("systems/data/h100_sxm/gemm")).expect("it is writable");
    let system = |name: &str| TablesInput { system: name.to_owned(), ..fake.input("dense") };
    for name in ["h100_sxm", "h100-sxm", "h100", "H100"] {
        // That GPU shares the tables of another one.
        assert!(Tables::new(&system(name)).is_ok(), "{name}");
    }
    assert_refused(&fake, &system("h200"), &["h200", "h100_sxm"]);
}
