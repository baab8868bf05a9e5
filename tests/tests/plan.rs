//! `vcr plan`: its answer compared with an exhaustive search, its determinism, and the commands in its files.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vcr_tests::{Folder, Said, Serve, root, vcr, wait_until};

const MODEL: [&str; 2] = ["--model", "Qwen/Qwen3-8B"];
/// Outputs are short, because an exhaustive search simulates every token.
const LOAD: [&str; 8] = [
    "--rate",
    "120",
    "--prompt-tokens",
    "lognormal(900, 700)",
    "--output-tokens",
    "uniform(4, 20)",
    "--requests",
    "1200",
];
const LATENCY: [&str; 2] = ["--latency", "roofline"];
const PRICES: [&str; 2] = ["--price", "h100=2.5,l40s=1"];

fn plan(folder: &Folder, args: &[&str]) -> Said {
    folder.vcr(&[&["plan", "--quiet"], &MODEL[..], &LATENCY[..], args].concat())
}

fn answer(folder: &Folder, args: &[&str]) -> Value {
    plan(folder, &[args, &["--json"]].concat()).ended(0).json()
}

/// The parts of the best row in which two searches must agree.
fn best(plan: &Value) -> Value {
    let row = &plan["rows"][0];
    json!([row["deployment"]["command"], row["deployment"]["gpu"], row["replicas"], row["price_per_hour_usd"]])
}

/// Search spaces of at most 400 deployments, and objectives.
const SPACES: [(&str, &[&str]); 6] = [
    (
        "{tensor_parallel: [1], prefill_decode: [], max_num_seqs: [16, 64, 256], max_num_batched_tokens: [2048, 4096, 8192]}",
        &["--gpu", "h100,l40s", "--max-gpus", "16", "--slo", "ttft.p95 < 500ms", "--slo", "itl.p99 < 60ms"],
    ),
    (
        "{tensor_parallel: [1, 2], prefill_decode: [], max_num_seqs: [16, 128], max_num_batched_tokens: [1024, 2048, 8192]}",
        &["--gpu", "h100", "--max-gpus", "40", "--slo", "ttft.p99 < 300ms", "--slo", "itl.p99 < 40ms"],
    ),
    (
        "{tensor_parallel: [1, 2], aggregated: false, prefill_decode: [\"1:1\", \"1:2\"], max_num_seqs: [32, 128], \
      max_num_batched_tokens: [2048, 8192], max_replicas: 16}",
        &["--gpu", "h100", "--max-gpus", "120", "--slo", "ttft.p95 < 1s", "--slo", "itl.p99 < 30ms"],
    ),
    (
        "{tensor_parallel: [1], prefill_decode: [], max_num_seqs: [8, 16, 32, 64], max_num_batched_tokens: [2048, 8192], \
      kv_cache_dtype: [auto, fp8]}",
        &["--gpu", "l40s", "--max-gpus", "24", "--slo", "goodput{ttft<2s,tpot<60ms}.ratio >= 90%"],
    ),
    (
        "{tensor_parallel: [1, 2, 4], prefill_decode: [], max_num_seqs: [32, 256], max_num_batched_tokens: [2048, 16384]}",
        &["--gpu", "l40s", "--max-gpus", "40", "--slo", "ttft.p95 < 2s", "--slo", "tpot.p95 < 45ms"],
    ),
    (
        "{tensor_parallel: [1, 2], prefill_decode: [\"1:1\"], max_num_seqs: [64, 256], max_num_batched_tokens: [2048, 8192]}",
        &["--gpu", "h100", "--max-gpus", "24", "--slo", "e2e.p90 < 6s", "--slo", "ttft.p95 < 400ms"],
    ),
];

#[test]
fn the_answer_is_that_of_an_exhaustive_search_for_a_tenth_of_the_requests() {
    for (number, (space, objectives)) in SPACES.into_iter().enumerate() {
        let folder = Folder::new();
        let args = [&LOAD[..], &PRICES[..], objectives, &["--space", space]].concat();
        // Give prices only for the requested GPUs.
        let args: Vec<&str> = match objectives[1] {
            "h100,l40s" => args,
            gpu => args
                .iter()
                .map(|word| match (*word, gpu) {
                    ("h100=2.5,l40s=1", "h100") => "h100=2.5",
                    ("h100=2.5,l40s=1", _) => "l40s=1",
                    (word, _) => word,
                })
                .collect(),
        };
        let raced = answer(&folder, &args);
        let whole = answer(&folder, &[&args[..], &["--exhaustive"]].concat());
        let deployments = whole["deployments"].as_u64().expect("a number");
        assert!((40..=400).contains(&deployments), "space {number} has {deployments} deployments");
        assert_eq!(best(&raced), best(&whole), "space {number}");
        let spent = |plan: &Value| plan["searched_requests"].as_u64().expect("a number");
        let (few, all) = (spent(&raced), spent(&whole));
        assert!(few * 10 <= all, "space {number}: {few} of {all} requests");
    }
}

/// A small question with a fast answer.
const SMALL: [&str; 14] = [
    "--gpu",
    "h100",
    "--rate",
    "20",
    "--requests",
    "600",
    "--prompt-tokens",
    "800",
    "--output-tokens",
    "100",
    "--slo",
    "ttft.p95 < 400ms",
    "--space",
    "{tensor_parallel: [1], max_num_seqs: [64], prefill_decode: ['1:1']}",
];

#[test]
fn the_same_question_has_the_same_bytes_on_any_number_of_threads() {
    let folder = Folder::new();
    let of = |threads: &str| plan(&folder, &[&SMALL[..], &["--json", "--threads", threads]].concat()).ended(0).stdout;
    let one = of("1");
    assert_eq!(one, of("4"));
    let other = plan(&folder, &[&SMALL[..], &["--json", "--seed", "2"]].concat()).ended(0).stdout;
    assert_ne!(one, other, "another seed draws another load");
}

#[test]
fn files_reproduce_each_row_and_say_what_to_do_next() {
    let folder = Folder::new();
    let plan = answer(&folder, &[&SMALL[..], &["--out", "plan"]].concat());
    let read = |name: &str| fs::read_to_string(folder.path().join("plan").join(name)).expect("it was written");
    let written: Value = serde_json::from_str(&read("plan.json")).expect("JSON");
    assert_eq!(written, plan);
    let rows = plan["rows"].as_array().expect("rows");
    assert!(!rows.is_empty());
    for row in rows {
        let number = row["number"].as_u64().expect("a number");
        let script = format!("plan/row-{number}/scenario.rhai");
        let report = folder.vcr(&["run", &script, "--json", "--quiet"]).ended(0).json();
        assert_eq!(report["fingerprint"], row["fingerprint"], "{script}");
        let observed: Vec<&Value> =
            report["assertions"].as_array().expect("assertions").iter().map(|made| &made["observed"]).collect();
        let predicted: Vec<&Value> =
            row["objectives"].as_array().expect("objectives").iter().map(|kept| &kept["observed"]).collect();
        assert_eq!(observed, predicted);
        assert_eq!(report["runs"][0]["metrics"]["gauges"]["gpus"].as_f64(), row["gpus"].as_f64());
        let command = row["deployment"]["command"].as_str().expect("a text");
        assert!(read(&format!("row-{number}/serve.sh")).contains(command));
        assert!(read(&format!("row-{number}/bench.sh")).contains("--random-input-len 800 --random-output-len 100"));
        assert!(read(&format!("row-{number}/values.yaml")).contains(&format!("--vllm-args={command}")));
    }
    assert_eq!(read("plan.csv").lines().count(), rows.len() + 1);
    assert!(read("plan.html").contains("keeps all objectives"));
    // A second plan needs no --force, because the folder is marked as a plan's.
    let _ = answer(&folder, &[&SMALL[..], &["--out", "plan"]].concat());
    let said = folder.vcr(&["plan", "explain", "plan", "1"]).ended(0);
    for words in ["limits it", "the tightest objective is", "one replica more for $", "--max-num-batched-tokens 2048"] {
        assert!(said.stdout.contains(words), "{words}: {}", said.stdout);
    }
    folder.vcr(&["plan", "explain", "plan", "99"]).failed(2, &["invalid row 99: expected 1 to"]);
}

/// The difference depends on the machine, but there must be a comparison.
#[test]
fn predictions_are_compared_with_a_server() {
    let folder = Folder::new();
    let _ = answer(&folder, &[&SMALL[..4], &["--requests", "20"], &SMALL[6..], &["--out", "plan"]].concat());
    let server = Serve::start(&["--inter-token-latency", "1ms"]);
    let said = folder.vcr(&[
        "plan",
        "verify",
        "plan",
        "--target",
        server.address(),
        "--tolerance",
        "500%",
        "--requests",
        "10",
    ]);
    for words in ["the prediction of Qwen/Qwen3-8B", "TTFT p95", "predicted", "measured", "ttft p95 < 400ms"] {
        assert!(said.stdout.contains(words), "{words}: {} {}", said.stdout, said.stderr);
    }
    let warning = "warning: the target serves `sim`, and the plan is for Qwen/Qwen3-8B";
    assert!(said.stderr.contains(warning), "{}", said.stderr);
}

#[test]
fn flags_of_one_deployment_are_tuned() {
    let folder = Folder::new();
    let load =
        ["--gpu", "h100", "--rate", "12", "--requests", "400", "--prompt-tokens", "800", "--output-tokens", "100"];
    let slo = ["--slo", "itl.p99 < 100ms", "--latency", "roofline", "--json", "--quiet"];
    let command = ["plan", "tune", "--vllm-args", "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 48 --block-size 32"];
    let tuned = folder.vcr(&[&command[..], &load, &slo].concat()).ended(0).json();
    assert_eq!(tuned["rows"].as_array().expect("rows").len(), 1);
    for row in tuned["rows"].as_array().expect("rows") {
        let command = row["deployment"]["command"].as_str().expect("a text");
        assert!(command.contains("-tp 2") && command.contains("--max-num-seqs 48 "), "{command}");
        assert!(command.contains("--block-size 32"), "{command}");
        assert_eq!(row["gpus"], 2);
    }
    let tried = folder.vcr(&[&command[..], &load, &slo, &["--space", "{max_num_seqs: 24}"]].concat()).ended(0).json();
    let tried = tried["rows"][0]["deployment"]["command"].as_str().expect("a text").to_owned();
    assert!(tried.contains("--max-num-seqs 24 ") && !tried.contains("48"), "{tried}");
    for (change, words) in [
        (&["--vllm-args", "vllm serve Qwen/Qwen3-8B --no-such 3"][..], "unknown argument `--no-such`"),
        (&["--replicas", "0"], "expected a whole number of at least 1"),
        (&["--space", "{tensor_parallel: [1, 2]}"], "`tensor_parallel`: expected values of flags"),
    ] {
        let command = if change[0] == "--vllm-args" { &command[..2] } else { &command[..] };
        folder.vcr(&[command, change, &load, &slo].concat()).failed(2, &[words]);
    }
}

#[test]
fn drafts_are_accepted_as_stated() {
    let folder = Folder::new();
    let drafts = "--speculative-config.method ngram --speculative-config.num_speculative_tokens 2";
    for (rates, pays) in [("[1, 1]", true), ("[0, 0]", false)] {
        let flags = "tensor_parallel: 1, prefill_decode: [], max_num_seqs: 64, max_num_batched_tokens: 8192";
        let space = format!("{{{flags}, arguments: ['', '{drafts}'], acceptance_rates: {rates}}}");
        let asked = [&SMALL[..10], &["--slo", "tpot.p95 < 50ms", "--out", "plan", "--space", &space]].concat();
        let row = answer(&folder, &asked)["rows"][0].clone();
        let command = row["deployment"]["command"].as_str().expect("a text");
        assert_eq!(command.contains("--speculative-config"), pays, "{rates}: {command}");
        let report = folder.vcr(&["run", "plan/row-1/scenario.rhai", "--json", "--quiet"]).ended(0).json();
        assert_eq!(report["fingerprint"], row["fingerprint"]);
        let values = fs::read_to_string(folder.path().join("plan/row-1/values.yaml")).expect("it was written");
        assert_eq!(values.contains("--acceptance-rates=1,1"), pays, "{values}");
        if pays {
            let args = values.lines().filter_map(|line| line.trim().strip_prefix("- '")?.strip_suffix('\''));
            let _ = Serve::start(&args.collect::<Vec<_>>());
        }
    }
}

/// A hundred prefixes of 4096 tokens in turn: more than a GPU holds, and less than the host does.
#[test]
fn host_memory_is_chosen_where_it_helps_and_judged_where_it_does_not() {
    let folder = Folder::new();
    let load = |prefixes: u64| -> String {
        let request = |number: u64| {
            let prefix = number % prefixes * 8;
            let hashes: Vec<u64> = (prefix..prefix + 8).chain([1_000_000 + number]).collect();
            let line = json!({
                "timestamp": number * 220, "input_length": 4608, "output_length": 20, "hash_ids": hashes
            });
            format!("{line}\n")
        };
        (0..300).map(request).collect()
    };
    folder.write("many.jsonl", load(100));
    folder.write("few.jsonl", load(10));
    folder.write("none.jsonl", load(300));
    let space = "{tensor_parallel: 1, max_num_seqs: 64, max_num_batched_tokens: 8192, prefill_decode: ['1:1'], \
                 host_gib_per_gpu: [0, 96]}";
    let of = |trace: &str, objective: &str| {
        let args = ["--gpu", "l40s", "--price", "l40s=1", "--trace", trace, "--slo", objective, "--scale", "1"];
        answer(&folder, &[&args[..], &["--space", space, "--out", "plan"]].concat())
    };
    for (trace, objective, is_used, words) in [
        ("many.jsonl", "ttft.p75 < 400ms", true, "host memory gives row 1 "),
        ("few.jsonl", "ttft.p75 < 5s", false, "does not help row 1: the GPUs hold what prompts share"),
        ("none.jsonl", "ttft.p75 < 5s", false, "does not help row 1: prompts share 0.0 % of their tokens"),
    ] {
        let plan = of(trace, objective);
        let row = &plan["rows"][0];
        let command = row["deployment"]["command"].as_str().expect("a text");
        assert_eq!(command.contains(" --kv-offloading-size 96"), is_used, "{trace}: {command}");
        let said = plan["host_memory"].as_str().expect("a text");
        assert!(said.contains(words), "{trace}: {said}");
        let report = folder.vcr(&["run", "plan/row-1/scenario.rhai", "--json", "--quiet"]).ended(0).json();
        assert_eq!(report["fingerprint"], row["fingerprint"]);
    }
    // Prefill engines with host memory, and decode engines without.
    let space = "{tensor_parallel: 1, max_num_seqs: 64, max_num_batched_tokens: 8192, aggregated: false, \
                 prefill_decode: ['1:1'], host_gib_per_gpu: 96}";
    let args = ["--gpu", "l40s", "--price", "l40s=1", "--trace", "many.jsonl", "--slo", "ttft.p75 < 5s"];
    let plan = answer(&folder, &[&args[..], &["--scale", "1", "--space", space, "--out", "apart"]].concat());
    let text = std::fs::read_to_string(folder.path().join("apart/row-1/serve.sh")).expect("it is written");
    let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("vllm serve")).collect();
    let is_offloading = |command: &&str| command.contains("\"cpu_bytes_to_use\": 103079215104");
    assert_eq!(commands.iter().map(is_offloading).collect::<Vec<_>>(), [true, false], "{text}");
    assert!(commands.iter().all(|command| command.contains("NixlConnector") && !command.contains("--kv-offloading")));
    for command in commands {
        let _ = folder.vcr(&["inspect", "vllm-args", "--gpu", "l40s", command]).ended(0);
    }
    let report = folder.vcr(&["run", "apart/row-1/scenario.rhai", "--json", "--quiet"]).ended(0).json();
    assert_eq!(report["fingerprint"], plan["rows"][0]["fingerprint"]);
    assert!(plan["host_memory"].is_null(), "the space has no deployment without it: {}", plan["host_memory"]);
}

#[test]
fn other_loads_may_need_other_gpus() {
    let folder = Folder::new();
    let args = ["--gpu", "h100,l40s", "--price", "h100=2.5,l40s=1", "--scale", "0.2,1,2"];
    let space = ["--space", "{tensor_parallel: 1, max_num_seqs: 64, max_num_batched_tokens: 8192, prefill_decode: []}"];
    let plan = answer(&folder, &[&args[..], &SMALL[2..12], &space].concat());
    let growth = plan["growth"].as_array().expect("a list").iter();
    let gpus: Vec<(Value, Value)> =
        growth.map(|one| (one["deployment"]["gpu"].clone(), one["replicas"].clone())).collect();
    // For a fifth of the load, one L40S for $1 is cheaper than an H100 for $2.50. For twice the load, four L40S for
    // $4 are cheaper than H100s for $5.
    assert_eq!(gpus, [(json!("l40s"), json!(1)), (json!("h100-sxm"), json!(1)), (json!("l40s"), json!(4))]);
}

#[test]
fn a_plan_that_was_killed_goes_on() {
    let folder = Folder::new();
    let question = [&["--max-gpus", "4", "--exhaustive", "--threads", "1"], &SMALL[..]].concat();
    let whole = answer(&folder, &question);
    let args = [&["plan", "--json", "--out", "plan"], &MODEL[..], &LATENCY, &question].concat();
    let mut process =
        Command::new(vcr()).args(&args).current_dir(folder.path()).stdout(Stdio::null()).spawn().expect("it starts");
    let kept = folder.path().join("plan.simulations");
    wait_until("simulations are kept", || fs::read_to_string(&kept).is_ok_and(|text| text.lines().count() > 2));
    process.kill().expect("it is there");
    let _ = process.wait();
    let said = folder.vcr(&args).ended(0);
    let before =
        said.stderr.split_once("goes on from `plan.simulations`: ").and_then(|(_, rest)| rest.split(' ').next());
    assert!(said.stderr.contains(" of the load made before"), "{}", said.stderr);
    let before: u64 = before.and_then(|before| before.parse().ok()).expect("a number");
    assert!((2..=whole["simulations"].as_u64().expect("a number")).contains(&before), "{}", said.stderr);
    assert_eq!(said.json(), whole);
    assert!(!kept.exists(), "the answer is whole");
}

#[test]
fn questions_come_from_a_file_and_options_replace_it() {
    let folder = Folder::new();
    folder.write(
        "plan.yaml",
        "model: Qwen/Qwen3-8B\ngpu: [h100]\nprice: {h100: 2.5}\nrate: 20\nrequests: 600\nprompt_tokens: 800\n\
         output_tokens: 100\nslo: ttft.p95 < 400ms\nlatency: roofline\n\
         space: {tensor_parallel: [1], max_num_seqs: [64], prefill_decode: []}\n",
    );
    let of = |args: &[&str]| folder.vcr(&[&["plan", "plan.yaml", "--json", "--quiet"], args].concat());
    let plan = of(&[]).ended(0).json();
    assert_eq!(plan["question"]["bounds"]["gpus"], json!([["h100-sxm", 2.5]]));
    let dearer = of(&["--price", "h100=5"]).ended(0).json();
    let price = |plan: &Value| plan["rows"][0]["price_per_hour_usd"].as_f64().expect("a number");
    assert_eq!(price(&dearer), 2.0 * price(&plan));
    folder.write("wrong.yaml", "model: Qwen/Qwen3-8B\ngpus: [h100]\n");
    // The error names every valid key, including those of the space.
    folder
        .vcr(&["plan", "wrong.yaml"])
        .failed(2, &["invalid `wrong.yaml`", "unknown field `gpus`", "`gpu`", "`space`"]);
    folder.write("space.yaml", "model: Qwen/Qwen3-8B\nspace: {seqs: [1]}\n");
    folder.vcr(&["plan", "space.yaml"]).failed(2, &["invalid `space.yaml`: `space`", "`seqs`", "`max_num_seqs`"]);
    folder.write("twice.yaml", "max-gpus: 2\nmax_gpus: 3\n");
    folder.vcr(&["plan", "twice.yaml"]).failed(2, &["`max_gpus` occurs twice"]);
    // Keys may have dashes, and values may be lists or single values.
    folder.write(
        "other.yaml",
        "model: [Qwen/Qwen3-8B]\ngpu: \"h100\"\nprice: h100=2.5\nrate: 20\nrequests: 600\nprompt-tokens: 800\n\
         output-tokens: '100'\nslo: [ttft.p95 < 400ms]\nlatency: roofline\n\
         space: {tensor-parallel: 1, max-num-seqs: 64, prefill-decode: []}\n",
    );
    assert_eq!(folder.vcr(&["plan", "other.yaml", "--json", "--quiet"]).ended(0).json(), plan);
}

#[test]
fn the_documented_file_is_a_question() {
    let page = fs::read_to_string(root().join("docs/how-to/plan-a-deployment.md")).expect("there is a page");
    let example =
        page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("there is an example");
    let folder = Folder::new();
    folder.write("plan.yaml", example);
    let plan = folder.vcr(&["plan", "plan.yaml", "--json", "--quiet"]).ended(0).json();
    let asked = &plan["question"];
    assert_eq!(asked["bounds"]["gpus"], json!([["h100-sxm", 2.5], ["l40s", 1.0]]));
    assert_eq!((&asked["space"]["link"], &asked["bounds"]["max_gpus"]), (&json!("100GB/s"), &json!(16)));
    // There is one entry for each requested load.
    let growth = plan["growth"].as_array().expect("a list").iter();
    assert_eq!(growth.map(|one| one["factor"].clone()).collect::<Vec<_>>(), [json!(0.5), json!(1.0), json!(2.0)]);
}

#[test]
fn what_cannot_be_kept_is_said_with_numbers() {
    let folder = Folder::new();
    let impossible = [&["plan"], &MODEL[..], &LATENCY, &SMALL[..10], &["--slo", "ttft.p95 < 20us"]].concat();
    let said = folder.vcr(&impossible).ended(1);
    for words in ["no deployment can keep", "ttft.p95 < 20us", "broken by one request alone"] {
        assert!(said.stdout.contains(words), "{words}: {}", said.stdout);
    }
    // The sentence and the table state the same distance.
    let distance = said.stdout.split_once(" % beyond").and_then(|(before, _)| before.rsplit(' ').next());
    let distance = format!("{} % beyond", distance.expect("a number"));
    assert_eq!(said.stdout.matches(&distance).count(), 2, "{}", said.stdout);
    // More replicas cost more, so the nearest deployment is the smallest.
    let dear = [&SMALL[..], &["--slo", "cost_per_hour.value < $2", "--json"]].concat();
    let cheapest = plan(&folder, &dear).ended(1).json();
    assert_eq!((&cheapest["nearest"]["replicas"], &cheapest["nearest"]["gpus"]), (&json!(1), &json!(1)));
    assert_eq!(cheapest["nearest"]["objectives"][1]["passed"], false, "{cheapest:#}");
    // With two conflicting objectives, the nearest deployment is neither the smallest nor the largest.
    let torn = ["--slo", "ttft.p95 < 45ms", "--slo", "cost_per_hour.value < $7", "--rate", "80", "--price", "h100=2"];
    let torn = [&SMALL[..2], &SMALL[4..10], &["--space", "{tensor_parallel: 1, prefill_decode: []}", "--json"], &torn]
        .concat();
    let gpus = plan(&folder, &torn).ended(1).json()["nearest"]["gpus"].as_u64().expect("a number");
    assert!((2..32).contains(&gpus), "{gpus} GPUs");
    let crowded = [&SMALL[..10], &["--slo", "ttft.p95 < 60ms", "--max-gpus", "1", "--json"]].concat();
    let nearest = plan(&folder, &crowded).ended(1).json();
    assert_eq!(nearest["feasible"], false);
    assert!(nearest["nearest"]["headroom"].as_f64().expect("a number") < 0.0, "{nearest:#}");
    let space = ["--space", "{tensor_parallel: [1], prefill_decode: []}"];
    let large = ["plan", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--latency", "roofline"];
    let large = folder.vcr(&[&large[..], &SMALL[..10], &["--slo", "ttft.p95 < 1s"], &space].concat());
    let large = large.ended(1);
    assert!(
        large.stdout.contains("no deployment fits: ") && large.stdout.contains("GiB of weights"),
        "{}",
        large.stdout
    );
}

#[test]
fn what_ends_a_search_leaves_the_best_so_far() {
    // Thousands of short simulations.
    let long = ["--gpu", "h100,l40s", "--rate", "10", "--requests", "200", "--prompt-tokens", "800"];
    let slo = ["--output-tokens", "100", "--slo", "ttft.p95 < 2s", "--exhaustive", "--json", "--out", "plan"];
    let long = [&long[..], &["--threads", "1"]].concat();
    for (limit, code, cause) in [("--budget", 0, "--budget"), ("--timeout", 124, "--timeout")] {
        let folder = Folder::new();
        let said = plan(&folder, &[&long[..], &slo, &[limit, "8s"]].concat()).ended(code);
        let answer = said.json();
        assert_eq!((&answer["cut_by"], &answer["feasible"]), (&json!(cause), &json!(true)));
        assert!(answer["families"].as_array().expect("a list").iter().any(|family| family["result"] == "unfinished"));
        assert!(folder.path().join("plan/row-1/scenario.rhai").is_file());
        assert!(folder.path().join("plan.simulations").is_file() && said.stderr.contains("goes on from there"));
        let report = folder.vcr(&["run", "plan/row-1/scenario.rhai", "--json", "--quiet"]).ended(0).json();
        assert_eq!(report["fingerprint"], answer["rows"][0]["fingerprint"]);
    }
    let folder = Folder::new();
    plan(&folder, &[&long[..], &slo, &["--budget", "1us"]].concat()).failed(2, &["--budget ended the search before"]);
    assert!(!folder.path().join("plan").exists(), "nothing is in it");
    assert!(!folder.path().join("plan.simulations").exists(), "nor in this");
}

/// A signal at any time leaves a complete answer or nothing.
#[test]
fn a_signal_leaves_no_empty_folder() {
    let folder = Folder::new();
    let mut command = Command::new(vcr());
    let args = [&["plan", "--quiet", "--exhaustive", "--out", "plan"], &MODEL[..], &LATENCY, &SMALL[..12]].concat();
    let mut process = command.args(args).current_dir(folder.path()).stdout(Stdio::null()).spawn().expect("it starts");
    let out = folder.path().join("plan");
    wait_until("the folder is there", || out.is_dir());
    let killed = Command::new("kill").args(["-INT", &process.id().to_string()]).status();
    assert!(killed.expect("there is `kill`").success());
    assert_eq!(process.wait().expect("it ends").code(), Some(130));
    assert!(!out.exists() || out.join("plan.json").is_file());
}

#[test]
fn plans_move_with_their_trace() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path().join("work")).expect("it is writable");
    fs::copy(root().join("scenarios/traces/chat.jsonl"), folder.path().join("work/chat.jsonl")).expect("it is there");
    let args = ["--gpu", "h100", "--trace", "work/chat.jsonl", "--slo", "ttft.p95 < 1s", "--out", "work/plan"];
    let row = answer(&folder, &[&args[..], &SMALL[12..]].concat())["rows"][0].clone();
    fs::rename(folder.path().join("work"), folder.path().join("moved")).expect("it can be moved");
    let script = "moved/plan/row-1/scenario.rhai";
    let text = fs::read_to_string(folder.path().join(script)).expect("it was written");
    assert!(text.contains("// Reads `../../chat.jsonl`: move them together."), "{text}");
    let report = folder.vcr(&["run", script, "--json", "--quiet"]).ended(0).json();
    assert_eq!(report["fingerprint"], row["fingerprint"]);
    let said = folder.vcr(&["plan", "explain", "moved/plan"]).ended(0);
    assert!(said.stdout.contains("one replica more"), "{}", said.stdout);
}

#[test]
fn answers_fit_a_terminal_and_say_what_they_assume() {
    let folder = Folder::new();
    let load = ["--rate", "20", "--requests", "300", "--prompt-tokens", "800", "--output-tokens", "100"];
    let asked = ["plan", "--model", "meta-llama/Llama-3.1-70B-Instruct-FP8", "--gpu", "h100", "--slo"];
    let space = ["ttft.p95 < 2s", "--latency", "roofline", "--space", "{tensor_parallel: [2, 4], max_num_seqs: 64}"];
    let said = folder.vcr(&[&asked[..], &space, &load].concat()).ended(0).stdout;
    let table: Vec<&str> =
        said.lines().skip_while(|line| !line.contains("  #  ")).take_while(|line| !line.is_empty()).collect();
    assert!(table.len() > 2 && table[..table.len() - 2].iter().all(|line| line.chars().count() <= 80), "{said}");
    assert!(!table[0].contains("KV peak"), "{said}");
    for words in [
        "assumed: `meta-llama/Llama-3.1-70B-Instruct-FP8` is published as nvidia/Llama-3.1-70B-Instruct-FP8",
        "assumed: prefill and decode engines are connected by a link of 50GB/s",
        "row 1: vllm serve nvidia/Llama-3.1-70B-Instruct-FP8",
        "needs at least",
        "replica",
        "more than row 1",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let whole = folder.vcr(&[&asked[..], &space, &load, &["--full"]].concat()).ended(0).stdout;
    assert!(whole.contains("KV peak"), "{whole}");
    let answer = folder.vcr(&[&asked[..], &space, &load, &["--quiet"]].concat()).ended(0).stdout;
    assert!(answer.contains("row 1: vllm serve "), "{answer}");
    for heading in ["assumed: ", "LOAD", "OTHERS", "simulations"] {
        assert!(said.contains(heading) && !answer.contains(heading), "{heading}: {answer}");
    }
}

#[test]
fn plans_without_rows_are_explained() {
    let folder = Folder::new();
    let _ = plan(&folder, &[&SMALL[..], &["--slo", "cost_per_hour.value < $2", "--out", "plan"]].concat()).ended(1);
    let said = folder.vcr(&["plan", "explain", "plan"]).ended(0).stdout;
    for words in [
        "No deployment keeps all objectives. Nearest: Qwen/Qwen3-8B",
        "cost_per_hour.value < $2 is",
        "one replica more",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let verify = ["plan", "verify", "plan", "--target", "localhost:1"];
    folder.vcr(&verify).failed(2, &["the plan has no rows", "cost_per_hour.value < $2 is"]);
    let large = ["plan", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--latency", "roofline", "--out", "large"];
    let space = ["--slo", "ttft.p95 < 1s", "--space", "{tensor_parallel: 1}"];
    let _ = folder.vcr(&[&large[..], &SMALL[..10], &space].concat()).ended(1);
    folder.vcr(&["plan", "explain", "large"]).failed(2, &["can be simulated", "GiB of weights"]);
}

#[test]
fn mistakes_are_refused() {
    let folder = Folder::new();
    folder.write("empty.jsonl", "");
    let without = |option: &str| -> Vec<&str> {
        let mut pairs: Vec<&[&str]> = SMALL.chunks(2).collect();
        pairs.retain(|pair| pair[0] != option);
        pairs.concat()
    };
    let with = |option: &'static str, value: &'static str| [without(option), vec![option, value]].concat();
    for (args, words) in [
        (with("--gpu", "h1000"), "unknown GPU `h1000`: expected one of"),
        (with("--slo", "ttft < 1s"), "invalid objective `ttft < 1s`"),
        (with("--slo", "tftt.p95 < 1s"), "unknown metric `tftt`"),
        (with("--slo", "ttft.p95 < 1"), "`1` has no unit"),
        ([&SMALL[..], &["--slo", "ttft.p50 > 1s"]].concat(), "no run keeps both `ttft.p50 > 1s`"),
        (with("--price", "h100=-1"), "invalid --price `h100=-1`"),
        (with("--price", "b300=3"), "not among --gpu"),
        (with("--gpu", "gb10"), "unknown price of `gb10`: expected --price gb10=PRICE"),
        (with("--rate", "0"), "invalid --rate 0"),
        (without("--rate"), "no load"),
        (without("--gpu"), "no GPU"),
        (without("--slo"), "no objective"),
        ([&SMALL[..], &["--max-model-len", "850"]].concat(), "invalid --max-model-len 850: 600 of 600 requests"),
        (with("--prompt-tokens", "lognormal(1)"), "invalid --prompt-tokens"),
        (with("--output-tokens", "-5"), "invalid --output-tokens `-5`"),
        (with("--space", "{tensor_paralel: [1]}"), "unknown field `tensor_paralel`"),
        (with("--space", "{tensor_parallel: []}"), "`tensor_parallel` has no values"),
        (with("--space", "{host_gib_per_gpu: [-1]}"), "invalid --space"),
        (
            with("--space", "{arguments: --speculative-config.method ngram}"),
            "`arguments` have drafts: expected `acceptance_rates`",
        ),
        (with("--space", "{prefill_decode: ['1-2']}"), "invalid `prefill_decode` `1-2`"),
        (vec!["--gpu", "h100", "--slo", "ttft.p95 < 1s", "--trace", "empty.jsonl"], "invalid load"),
        (vec!["--gpu", "h100", "--slo", "ttft.p95 < 1s", "--trace", "none.jsonl"], "cannot read `none.jsonl`"),
    ] {
        plan(&folder, &args).failed(2, &[words]);
    }
    let unpriced = [&["plan", "--quiet", "--latency", "none.json"], &MODEL[..], &SMALL[..]].concat();
    folder.vcr(&unpriced).failed(2, &["invalid --latency `none.json`"]);
    folder.vcr(&["plan", "explain", "nowhere"]).failed(2, &["cannot read"]);
}
