//! `vcr pack`, `vcr unpack`, `vcr inspect pack`, and packs in `vcr run`.

use std::fs;
use std::io::Write;

use vcr_pack::{Content, Manifest, PackFile};
use vcr_tests::{Folder, Said, root, shipped_guest, vcr};
use vcr_trace::import::table::{Cells, Column, TableFormat};

/// Reads a trace in the scenario's folder and a capture in another folder.
const SCENARIO: &str = r#"
let completed = param("completed", 42);
let c = cluster(#{ engines: pool(#{ engines: 2, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) }) });
let r = run(#{ name: "mixed", cluster: c, workloads: [
    trace(#{ path: "../traces/t.jsonl", format: "mooncake", name: "trace" }), capture("day.jsonl.zst") ] });
expect(r, "completed", "count == " + completed);
"#;

const ROWS: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], "user": "Ada"}
{"timestamp": 9, "input_length": 600, "output_length": 5, "hash_ids": [1, 3], "user": "Ada"}
"#;

fn folder() -> Folder {
    let folder = Folder::new();
    for name in ["scenarios", "traces"] {
        fs::create_dir(folder.path().join(name)).expect("the folder is writable");
    }
    folder.write("scenarios/s.rhai", SCENARIO);
    folder.write("traces/t.jsonl", ROWS);
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "scenarios/day.jsonl.zst", "--requests", "40"]).ended(0);
    folder
}

fn bytes(folder: &Folder, name: &str) -> Vec<u8> {
    fs::read(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The pack `from` with one changed file, and correct digests.
fn changed(folder: &Folder, from: &str, to: &str, path: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let into = folder.path().join(format!("{to}.d"));
    fs::create_dir(&into).expect("the folder is writable");
    let manifest: Manifest = vcr_pack::unpack(&folder.path().join(from), &into).expect("it is right");
    let file = |entry: &vcr_pack::FileEntry| {
        let bytes = fs::read(into.join(&entry.path)).expect("it was unpacked");
        let bytes = if entry.path == path { change(bytes) } else { bytes };
        PackFile { path: entry.path.clone(), content: Content::Bytes(bytes) }
    };
    let files = manifest.files.iter().map(file).collect();
    let mut out = fs::File::create(folder.path().join(to)).expect("the folder is writable");
    let _ = vcr_pack::write(&mut out, manifest, files).expect("it is written");
}

#[test]
fn a_pack_is_the_same_twice_and_runs_without_its_files() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "a.vcr"]).ended(0);
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "b.vcr", "--threads", "1"]).ended(0);
    assert_eq!(bytes(&folder, "a.vcr"), bytes(&folder, "b.vcr"));
    folder.vcr(&["pack", "scenarios/s.rhai", "-o", "a.vcr"]).failed(2, &["a.vcr", "--force"]);

    let expected = folder.vcr(&["run", "scenarios/s.rhai", "--json"]).ended(0).json();
    let elsewhere = Folder::new();
    elsewhere.write("a.vcr", bytes(&folder, "a.vcr"));
    let said = elsewhere.vcr(&["run", "a.vcr", "--json"]).ended(0);
    assert_eq!(said.json(), expected, "names of files included");
    assert!(said.stderr.contains("same: the fingerprint is the one of the pack"), "{}", said.stderr);

    let manifest = elsewhere.vcr(&["inspect", "pack", "a.vcr", "--json"]).ended(0).json();
    assert_eq!(manifest["expected"]["fingerprint"], expected["fingerprint"]);
    assert_eq!(manifest["scenario"], "scenario/scenarios/s.rhai");
    let shown = elsewhere.vcr(&["inspect", "pack", "a.vcr"]).ended(0).stdout;
    for part in [
        "every assertion passed",
        "scenario/traces/t.jsonl",
        "scenario/scenarios/day.jsonl.zst",
        "run mixed: 2 engines",
    ] {
        assert!(shown.contains(part), "`{part}` is not in:\n{shown}");
    }

    let _ = elsewhere.vcr(&["unpack", "a.vcr"]).ended(0);
    let again = elsewhere.vcr(&["run", "a/scenario/scenarios/s.rhai", "--json"]).ended(0).json();
    assert_eq!(again["fingerprint"], expected["fingerprint"]);
    assert_eq!(bytes(&elsewhere, "a/scenario/traces/t.jsonl"), ROWS.as_bytes());
    elsewhere.vcr(&["unpack", "a.vcr"]).failed(2, &["`a` exists", "--output"]);
}

#[test]
fn settings_are_part_of_a_pack() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "p.vcr", "-e", "completed=1", "--seed", "7"]).ended(0);
    let said = folder.vcr(&["run", "p.vcr", "--json"]).ended(1);
    assert_eq!((&said.json()["runs"][0]["seed"], &said.json()["parameters"]["completed"]), (&7.into(), &"1".into()));
    assert!(said.stderr.contains("same: "), "{}", said.stderr);
    let said = folder.vcr(&["run", "p.vcr", "-e", "completed=42"]).ended(0);
    assert!(said.stderr.contains("its result was not compared"), "{}", said.stderr);
}

#[test]
fn a_pack_that_was_copied_in_part_is_called_so() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "p.vcr"]).ended(0);
    let whole = bytes(&folder, "p.vcr");
    folder.write("cut.vcr", &whole[..whole.len() / 2]);
    for command in [&["run", "cut.vcr"][..], &["inspect", "pack", "cut.vcr"], &["unpack", "cut.vcr"]] {
        folder.vcr(command).failed(2, &["cut.vcr: the pack is cut off: copy it again"]);
    }
}

#[test]
fn the_first_step_that_differs_is_named() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "p.vcr"]).ended(0);
    // Simulates a version that prices the steps of one engine differently from the fourth step on.
    changed(&folder, "p.vcr", "steps.vcr", "expected/steps.bin", |mut digests| {
        digests[3 * 4] ^= 1;
        digests
    });
    let said = folder.vcr(&["run", "steps.vcr"]).ended(0);
    assert!(said.stderr.contains("same: "), "the fingerprint decides: {}", said.stderr);
    changed(&folder, "p.vcr", "slow.vcr", "scenario/scenarios/s.rhai", |script| {
        String::from_utf8(script).expect("a text").replace("10ms", "11ms").into_bytes()
    });
    let said = folder.vcr(&["run", "slow.vcr", "--out", "out"]).ended(1);
    assert!(said.stdout.contains("1 of 2 assertions failed"), "{}", said.stdout);
    let junit = String::from_utf8(bytes(&folder, "out/junit.xml")).expect("a text");
    assert!(junit.contains("<failure message=\"observed different: the pack expects the fingerprint"), "{junit}");
    for part in [
        "different: the pack expects the fingerprint",
        "the first difference is in step 0 of engine ",
        "in the run `mixed`",
    ] {
        assert!(said.stderr.contains(part), "`{part}` is not in:\n{}", said.stderr);
    }
    changed(&folder, "p.vcr", "faulty.vcr", "scenario/scenarios/s.rhai", |script| {
        let fault = "faults: [ slow_down(#{ at: \"4s\", factor: 2.0, engine: 1 }) ], cluster: c";
        String::from_utf8(script).expect("a text").replace("cluster: c", fault).into_bytes()
    });
    let said = folder.vcr(&["run", "faulty.vcr"]).ended(1).stderr;
    let number = said.split("the first difference is in step ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(number.and_then(|number| number.parse::<u64>().ok()).is_some_and(|step| step > 10), "{said}");
}

#[test]
fn a_redacted_pack_has_no_names_and_no_tokens() {
    let folder = folder();
    let head = r#"{"kind":"meta","format":"vcr.capture","version":1,"model":"secret-model","block_size_tokens":4,"holds":{"output_tokens":true,"prompt_tokens":true}}"#;
    let row = r#"{"kind":"request","id":"secret-id","session":"secret-session","arrival_ns":0,"prompt_tokens":4,"block_hashes":["617f8fc6404c5419"],"mm_items":[{"hash":"secret-image","offset":1,"tokens":2,"modality":"image"}],"prompt_token_ids":[77701,2,3,4],"output_tokens":2,"output_token_ids":[77702,6],"ttft_ns":5,"gap_ns":[7],"finish_reason":"stop","end_ns":12,"params":{"stop":["secret-stop"]},"error":"secret-error","lora":"secret-lora","secret-field":1}"#;
    folder.write("scenarios/day.jsonl", format!("{head}\n{row}\n"));
    folder.write("scenarios/s.rhai", SCENARIO.replace("day.jsonl.zst", "day.jsonl").replace("42", "3"));
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "--redact", "-o", "r.vcr"]).ended(0);
    let said = folder.vcr(&["run", "r.vcr", "--json"]).ended(0);
    assert!(said.stderr.contains("same: "), "{}", said.stderr);
    let _ = folder.vcr(&["unpack", "r.vcr"]).ended(0);
    let capture = String::from_utf8(bytes(&folder, "r/scenario/scenarios/day.jsonl")).expect("a text");
    let trace = String::from_utf8(bytes(&folder, "r/scenario/traces/t.jsonl")).expect("a text");
    for secret in ["secret", "7770", "Ada"] {
        assert!(!capture.contains(secret) && !trace.contains(secret), "{secret}:\n{capture}\n{trace}");
    }
    assert!(capture.contains("617f8fc6404c5419") && capture.contains("\"ttft_ns\":5"), "{capture}");
    assert!(capture.contains("\"offset\":1,\"tokens\":2,\"modality\":\"image\""), "{capture}");
    assert!(trace.contains("600") && trace.lines().count() == 2, "{trace}");
    folder.write(
        "traces/t.jsonl",
        "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n\
        {\"session_id\": \"a\", \"timestamp\": 3, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n",
    );
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "--redact", "-o", "sessions.vcr"]).ended(0);
}

#[test]
fn a_failure_is_packed_if_asked_for() {
    let folder = folder();
    let args = ["run", "scenarios/s.rhai", "-q", "--pack-on-failure"];
    let _ = folder.vcr(&args).ended(0);
    assert!(!folder.path().join("s.vcr").exists(), "nothing failed");
    let said = folder.vcr(&[&args[..], &["-e", "completed=1"]].concat()).ended(1);
    assert!(said.stderr.contains("packed into s.vcr; run it with: vcr run s.vcr"), "{}", said.stderr);
    let said = folder.vcr(&["run", "s.vcr", "-q"]).ended(1);
    assert!(said.stderr.contains("same: "), "{}", said.stderr);
    // The pack of an earlier failure is replaced, but no other file is.
    let _ = folder.vcr(&[&args[..], &["-e", "completed=2"]].concat()).ended(1);
    folder.write("mine.txt", "mine");
    let said =
        folder.vcr(&["run", "scenarios/s.rhai", "-q", "--pack-on-failure=mine.txt", "-e", "completed=1"]).ended(1);
    assert!(said.stderr.contains("mine.txt"), "{}", said.stderr);
    assert_eq!(bytes(&folder, "mine.txt"), b"mine");
}

/// Each failure of several scenarios has a separate pack. A name for all packs is refused, and so are sweeps.
#[test]
fn each_failure_of_several_scenarios_is_packed() {
    let folder = folder();
    let text = bytes(&folder, "scenarios/s.rhai");
    folder.write("scenarios/t.rhai", &text);
    let files = ["run", "scenarios/s.rhai", "scenarios/t.rhai", "-q", "-e", "completed=1"];
    let said = folder.vcr(&[&files[..], &["--pack-on-failure"]].concat()).ended(1);
    for name in ["s.vcr", "t.vcr"] {
        assert!(said.stderr.contains(&format!("packed into {name}; run it with: vcr run {name}")), "{}", said.stderr);
        let said = folder.vcr(&["run", name, "-q"]).ended(1);
        assert!(said.stderr.contains("same: "), "{}", said.stderr);
    }
    folder
        .vcr(&[&files[..], &["--pack-on-failure=all.vcr"]].concat())
        .failed(2, &["--pack-on-failure=all.vcr names one pack for several scenarios", "leave out the name"]);
    folder.write("s.rhai", &text);
    folder
        .vcr(&["run", "s.rhai", "scenarios/s.rhai", "--pack-on-failure"])
        .failed(2, &["two scenarios are packed into `s.vcr`"]);
    for question in [&["--sweep", "completed=1,2"][..], &["--search", "completed=1..2"], &["--repeat", "2"]] {
        let run = ["run", "scenarios/s.rhai", "--pack-on-failure"];
        folder.vcr(&[&run[..], question].concat()).failed(2, &["'--pack-on-failure[=<FILE>]' cannot be used with"]);
    }
}

#[test]
fn a_model_that_fails_is_packed_with_its_error() {
    let folder = Folder::new();
    folder.write(
        "s.rhai",
        r#"let model = trained_physics(#{ model: "llama-3.1-8b", gpu: "h100-sxm", coefficients: #{
            prefill_compute: 0.0, prefill_kv: 0.0, decode_compute: 0.0, decode_kv: 0.0, weights: 0.0,
            all_reduce: 0.0, layer_us: 0.0, request_us: 0.0, step_us: -5.0 } });
        run(#{ cluster: cluster(#{ engines: pool(#{ engine: engine(#{}), latency: model }) }),
            workloads: [ burst(#{ count: 5, prompt_tokens: 100, output_tokens: 20 }) ] });"#,
    );
    let said = folder.vcr(&["run", "s.rhai", "-q", "--json", "--pack-on-failure=f.vcr"]).ended(3);
    let failed = said.json();
    assert_eq!((&failed["scenario"], &failed["passed"]), (&"s.rhai".into(), &false.into()), "{failed}");
    assert!(failed["error"].as_str().is_some_and(|error| error.contains("a step comes out at")), "{failed}");
    let elsewhere = Folder::new();
    elsewhere.write("f.vcr", bytes(&folder, "f.vcr"));
    let said = elsewhere.vcr(&["run", "f.vcr"]).ended(3);
    assert!(said.stderr.contains("same: the error is the one of the pack"), "{}", said.stderr);
    let shown = elsewhere.vcr(&["inspect", "pack", "f.vcr"]).ended(0).stdout;
    assert!(shown.contains("expected: the error ") && shown.contains("a step comes out at -0.005 ms"), "{shown}");
}

#[test]
fn damaged_packs_are_refused() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "p.vcr"]).ended(0);
    let whole = bytes(&folder, "p.vcr");
    folder.write("cut.vcr", &whole[..whole.len() / 2]);
    for command in [&["run", "cut.vcr"][..], &["unpack", "cut.vcr"], &["inspect", "pack", "cut.vcr"]] {
        folder.vcr(command).failed(2, &["error: "]);
    }
    assert!(!folder.path().join("cut").exists(), "nothing is left of it");
    folder.vcr(&["inspect", "pack", "scenarios/s.rhai"]).failed(2, &["not a pack"]);
    folder.vcr(&["inspect", "pack", "scenarios/day.jsonl.zst"]).failed(2, &["error: "]);
    folder.vcr(&["unpack", "none.vcr"]).failed(2, &["cannot read the pack"]);

    folder.write("bomb.vcr", with_zeros(&whole));
    folder.vcr(&["inspect", "pack", "bomb.vcr"]).failed(2, &["holds `more behind its end`"]);
}

/// The pack with 16 MiB of zeros at the end, in the same stream.
fn with_zeros(pack: &[u8]) -> Vec<u8> {
    let mut bytes = pack.to_vec();
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("an encoder");
    let zeros = vec![0_u8; 1 << 20];
    for _ in 0..16 {
        encoder.write_all(&zeros).expect("it is written");
    }
    bytes.extend(encoder.finish().expect("it is finished"));
    bytes
}

#[test]
fn the_main_scenario_is_packed() {
    if shipped_guest("roofline").is_none() {
        return;
    }
    let folder = Folder::new();
    let script = root().join("scenarios/pd_burst.rhai");
    let _ = folder.vcr(&["pack", script.to_str().expect("a path in UTF-8"), "-o", "p.vcr"]).ended(0);
    let manifest = folder.vcr(&["inspect", "pack", "p.vcr", "--json"]).ended(0).json();
    let kinds: Vec<_> = manifest["inputs"].as_array().expect("a list").iter().map(|input| &input["kind"]).collect();
    assert_eq!(kinds, ["trace", "guest"]);
    let said = folder.vcr(&["run", "p.vcr"]).ended(0);
    assert!(said.stderr.contains("same: "), "{}", said.stderr);
}

/// Searches, sweeps and repetitions on a pack: its files stay unpacked as long as its runs read them.
#[test]
fn searches_sweeps_and_repetitions_take_packs() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "a.vcr"]).ended(0);
    let elsewhere = Folder::new();
    elsewhere.write("a.vcr", bytes(&folder, "a.vcr"));
    let swept = elsewhere.vcr(&["run", "a.vcr", "--sweep", "completed=41,42", "--json"]).ended(0).json();
    let points = swept.as_array().unwrap_or_else(|| panic!("no points: {swept:#}"));
    let passed: Vec<_> = points.iter().map(|point| point["passed"].as_u64()).collect();
    assert_eq!(passed, [Some(0), Some(1)]);
    let _ = elsewhere.vcr(&["run", "a.vcr", "--repeat", "3", "--json"]).ended(0);
    elsewhere.write("broken.vcr", &bytes(&folder, "a.vcr")[..200]);
    elsewhere.vcr(&["run", "broken.vcr", "--sweep", "completed=41,42"]).failed(2, &["broken.vcr"]);
}

/// A table file with one column of text and these columns of numbers.
fn table(folder: &Folder, path: &str, texts: &[(&str, &str)], columns: &[&str], rows: &[&[f64]]) {
    let text = |(name, text): &(&str, &str)| Column {
        name: (*name).to_owned(),
        cells: Cells::Texts(vec![(*text).to_owned(); rows.len()]),
    };
    let number = |(index, name): (usize, &&str)| {
        let cells = match *name {
            "latency" => Cells::Numbers(rows.iter().map(|row| Some(row[index])).collect()),
            _ => Cells::Counts(rows.iter().map(|row| row[index] as u64).collect()),
        };
        Column { name: (*name).to_owned(), cells }
    };
    let columns: Vec<Column> = texts.iter().map(text).chain(columns.iter().enumerate().map(number)).collect();
    let mut bytes = Vec::new();
    vcr_trace::import::table::write(&mut bytes, &columns, TableFormat::Parquet).expect("a vector takes everything");
    let file = folder.path().join(path);
    fs::create_dir_all(file.parent().expect("it lies in a folder")).expect("the folder is writable");
    fs::write(file, bytes).expect("the folder is writable");
}

/// A package of operator tables in which every operation takes a millisecond, and one file that nothing reads.
fn tables(folder: &Folder) {
    let data = "tables/systems/data/gpu";
    let gemms: Vec<[f64; 4]> = [(128, 64), (64, 64), (256, 64), (64, 128), (1000, 64), (192, 64)]
        .into_iter()
        .flat_map(|(n, k)| [1, 64].map(|m| [f64::from(m), f64::from(n), f64::from(k), 1.0]))
        .collect();
    let gemms: Vec<&[f64]> = gemms.iter().map(|row| &row[..]).collect();
    let gemm = format!("{data}/gemm/vllm/1.0/gemm_perf.parquet");
    table(folder, &gemm, &[("gemm_dtype", "bfloat16")], &["m", "n", "k", "latency"], &gemms);
    let dtypes = [("kernel_source", "flash"), ("attn_dtype", "bfloat16"), ("kv_cache_dtype", "bfloat16")];
    let columns =
        ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl", "step", "window_size", "latency"];
    for (name, is_decode) in [("context", false), ("generation", true)] {
        let row = |batch: f64, length: f64| {
            let [isl, step] = if is_decode { [1.0, length - 1.0] } else { [length, 0.0] };
            [4.0, 4.0, 16.0, batch, isl, step, 0.0, 1.0]
        };
        let rows = [row(1.0, 16.0), row(1.0, 256.0), row(4.0, 16.0), row(4.0, 256.0)];
        let rows: Vec<&[f64]> = rows.iter().map(|row| &row[..]).collect();
        table(folder, &format!("{data}/attention/vllm/1.0/{name}_attention_perf.parquet"), &dtypes, &columns, &rows);
    }
    let system = "data_dir: data/gpu\ngpu: {mem_bw: 1.0e12, bfloat16_tc_flops: 1.0e14}\n\
                  node: {num_gpus_per_node: 8, intra_node_bw: 1.0e11, inter_node_bw: 1.0e10}\n";
    folder.write("tables/systems/gpu.yaml", system);
    folder.write("tables/systems/unread.yaml", system);
    fs::create_dir_all(folder.path().join("tables/model_configs")).expect("the folder is writable");
    let model = r#"{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}"#;
    folder.write("tables/model_configs/us--dense_config.json", model);
}

#[test]
fn operator_tables_are_packed_as_far_as_they_were_read() {
    let folder = Folder::new();
    tables(&folder);
    let scenario = |data: &str| {
        format!(
            "let c = cluster(#{{ engines: pool(#{{ engine: engine(#{{ num_gpu_blocks: 100 }}), \
             latency: tables(#{{ {data}system: \"gpu\", model: \"us/dense\" }}) }}) }});\n\
             run(#{{ cluster: c, workloads: [burst(#{{ count: 3, prompt_tokens: 20, output_tokens: 5 }})] }});\n"
        )
    };
    folder.write("named.rhai", scenario("data: \"tables\", "));
    folder.write("found.rhai", scenario(""));
    for (name, place) in [("named", "tables"), ("found", "VCR_TABLES")] {
        let (script, pack) = (format!("{name}.rhai"), format!("{name}.vcr"));
        let mut command = std::process::Command::new(vcr());
        command.args(["pack", &script, "-o", &pack]).current_dir(folder.path());
        let _ = Said::of(command.env("VCR_TABLES", folder.path().join("tables"))).ended(0);
        let elsewhere = Folder::new();
        elsewhere.write(&pack, bytes(&folder, &pack));
        let mut command = std::process::Command::new(vcr());
        command.args(["run", &pack]).current_dir(elsewhere.path()).env_remove("VCR_TABLES");
        let said = Said::of(&mut command).ended(0).stderr;
        assert!(said.contains("same: the fingerprint is the one of the pack"), "{name}: {said}");
        let manifest = elsewhere.vcr(&["inspect", "pack", &pack, "--json"]).ended(0).json();
        let files: Vec<&str> =
            manifest["files"].as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect();
        assert!(files.contains(&&*format!("scenario/{place}/systems/gpu.yaml")), "{files:#?}");
        assert!(!files.iter().any(|file| file.contains("unread")), "{files:#?}");
        assert_eq!(manifest["inputs"][0]["kind"], "tables");
    }
}

#[test]
fn packs_run_beside_other_files() {
    let folder = folder();
    let _ = folder.vcr(&["pack", "scenarios/s.rhai", "-o", "p.vcr"]).ended(0);
    let said = folder.vcr(&["run", "scenarios/s.rhai", "p.vcr"]).ended(0);
    assert!(said.stderr.contains("p.vcr: same: the fingerprint is the one of the pack"), "{}", said.stderr);
    assert!(said.stderr.contains("2 of 2 scenarios passed"), "{}", said.stderr);
    changed(&folder, "p.vcr", "slow.vcr", "scenario/scenarios/s.rhai", |script| {
        String::from_utf8(script).expect("a text").replace("10ms", "11ms").into_bytes()
    });
    let said = folder.vcr(&["run", "scenarios/s.rhai", "slow.vcr"]).ended(1);
    assert!(said.stderr.contains("slow.vcr: different: the pack expects"), "{}", said.stderr);
    assert!(said.stdout.lines().any(|line| line.contains('✗') && line.contains("slow.vcr")), "{}", said.stdout);
    let said = folder.vcr(&["run", "p.vcr", "scenarios/s.rhai", "-e", "completed=42"]).ended(0);
    assert!(said.stderr.contains("p.vcr: the pack was made with other parameters"), "{}", said.stderr);
}
