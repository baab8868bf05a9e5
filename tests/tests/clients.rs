//! `vcr serve` with third-party clients: SDKs of OpenAI and Anthropic, LiteLLM, Codex, and the benchmarks of vLLM,
//! GuideLLM and AIPerf. `tests/frontends/clients.sh` installs them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, claude_code, client, codex, ended, frontend_model, vllm_rs};

/// Options for answers of a few words that end by themselves.
const WORDS: &[&str] = &["--output-tokens", "20"];
/// Faults for tenants, which a header distinguishes.
const FAULTS: &[&str] = &[
    "--client-fault",
    "status:code=429,retry-after=0s,call=1..2,header=x-tenant:busy",
    "--client-fault",
    "status:code=503,call=1..2,header=x-tenant:down",
    "--client-fault",
    "error-event:after=2,header=x-tenant:error-event",
    "--client-fault",
    "reset:header=x-tenant:reset",
];
/// The exception class for an HTTP status, which is the same in both SDKs.
const CLASSES: &[(&str, &str)] = &[
    ("401", "AuthenticationError"),
    ("403", "PermissionDeniedError"),
    ("404", "NotFoundError"),
    ("429", "RateLimitError"),
    ("500", "InternalServerError"),
];

fn url(serve: &Serve) -> String {
    format!("http://{}", serve.address())
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("no text at {path}: {value}"))
}

fn assert_classes(errors: &Value) {
    for (status, class) in CLASSES {
        assert_eq!(&errors["injected"][*status]["class"], class, "status {status}");
        assert_eq!(errors["injected"][*status]["status"].to_string(), *status);
    }
}

#[test]
fn the_sdk_of_openai_reads_all_answers() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(WORDS);
    let report = sdks.report("openai_sdk.py", &[&url(&serve)]);
    let chats = &report["chats"];
    assert!(!text(chats, "/whole").is_empty());
    for way in ["pieces", "helper"] {
        assert_eq!(chats[way], chats["whole"], "{way}");
    }
    assert_eq!(chats["finish_reason"], "stop");
    assert_eq!(chats["usage"], chats["chunk_usage"]);
    assert_eq!(chats["top_logprobs"], json!([2, 2]));
    assert_eq!(chats["kinds"], json!(["chunk", "content.delta", "content.done"]));
    assert_eq!(report["texts"]["pieces"], report["texts"]["whole"]);
    assert_eq!(report["texts"]["logprobs"], report["texts"]["tokens"]);
    let responses = &report["responses"];
    assert_eq!((&responses["helper"], &responses["status"]), (&responses["whole"], &json!("completed")));
    let kinds = responses["kinds"].as_array().expect("a list");
    assert_eq!((kinds.first(), kinds.last()), (Some(&json!("response.created")), Some(&json!("response.completed"))));
    assert_eq!(report["many"], json!(vec![3; 20]));
    assert_eq!(report["models"], json!(["sim"]));
}

#[test]
fn the_sdk_of_openai_for_javascript_parses_schemas_of_zod() {
    let Some(sdk) = client("openai-js").filter(|sdk| sdk.node_package("openai").is_some()) else { return };
    let serve = Serve::start(&[]);
    let report = sdk.node_report("openai_zod.cjs", &[&url(&serve)]);
    for form in ["older", "closed", "own"] {
        let orders = report[form].as_array().expect("a list");
        assert_eq!(orders.len(), 9, "{form}");
        for order in orders {
            assert!(order["id"].is_i64() && order["lines"][0]["count"].is_i64(), "{order}");
            assert!(form == "closed" || order["place"].as_array().is_some_and(|place| place.len() == 3), "{order}");
        }
        let has_scores = |order: &Value| order["scores"].as_object().is_some_and(|scores| !scores.is_empty());
        assert!(form == "closed" || orders.iter().any(has_scores), "{form}");
    }
    assert!(report["response"]["id"].is_i64(), "{}", report["response"]);
    let calls = report["calls"].as_array().expect("a list");
    assert!(calls.len() > 6, "all that are required, and some that are not: {calls:?}");
}

#[test]
fn claude_code_talks_and_calls_its_tools() {
    let Some(claude) = client("claude") else { return };
    // The client's instructions and tools have 40,000 tokens.
    let options = ["--max-model-len", "200000", "--output-tokens", "20", "--tool-call-probability"];
    for (probability, calls_least) in [("0", 0), ("1", 1)] {
        let serve = Serve::start(&[&options[..], &[probability]].concat());
        for prompt in ["Say hello", "What is in this folder?", "Plan a trip"] {
            let folder = Folder::new();
            let Some(lines) = claude_code(&claude, &url(&serve), folder.path(), prompt) else { return };
            let last = lines.last().expect("it has printed something");
            assert_eq!((&last["type"], &last["is_error"]), (&json!("result"), &json!(false)), "{last}");
            assert!(!text(last, "/result").is_empty(), "{last}");
            let contents = lines.iter().filter_map(|line| line["message"]["content"].as_array()).flatten();
            let calls = contents.filter(|block| block["type"] == "tool_use").count();
            assert!(calls >= calls_least, "{calls}: {lines:?}");
        }
    }
}

#[test]
fn the_sdk_of_openai_knows_the_errors_and_retries() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&[WORDS, FAULTS, &["--max-model-len", "4096"]].concat());
    let errors = sdks.report("openai_sdk.py", &[&url(&serve), "errors"]);
    assert_classes(&errors);
    for (name, class) in [("unknown", "NotFoundError"), ("range", "BadRequestError"), ("long", "BadRequestError")] {
        assert_eq!(errors[name]["class"], class, "{name}");
    }
    assert!(text(&errors, "/long/text").contains("maximum context length is 4096 tokens"));
    for (status, class) in [("400", "BadRequestError"), ("409", "ConflictError"), ("422", "UnprocessableEntityError")] {
        assert_eq!(errors["injected"][status]["class"], class, "status {status}");
    }
    assert_eq!(errors["error event"]["class"], "APIError");
    assert_eq!(errors["reset"]["class"], "APIConnectionError");
    let retries = sdks.report("openai_sdk.py", &[&url(&serve), "retries"]);
    for tenant in ["busy", "down"] {
        assert_eq!(retries[tenant]["retries"], 2, "{tenant}");
        assert!(!text(&retries[tenant], "/text").is_empty());
    }
}

fn assert_arguments(arguments: &Value) {
    let days = arguments["days"].as_i64().unwrap_or(0);
    assert!(arguments["place"].is_string() && (1..=7).contains(&days), "{arguments}");
}

#[test]
fn the_sdk_of_openai_calls_tools() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&[]);
    let report = sdks.report("openai_sdk.py", &[&url(&serve), "tools"]);
    assert_eq!(report["name"], "weather");
    assert_arguments(&serde_json::from_str(text(&report, "/whole")).expect("arguments are JSON"));
    for way in ["pieces", "helper"] {
        assert_eq!(report[way], report["whole"], "{way}");
    }
    assert_arguments(&report["parsed"]);
    let kinds = json!(["chunk", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"]);
    assert_eq!(report["kinds"], kinds);
    assert!(!text(&report, "/after").is_empty());
    let responses = &report["responses"];
    assert_eq!((&responses["type"], &responses["helper"]), (&json!("function_call"), &responses["whole"]));
    assert_arguments(&serde_json::from_str(text(responses, "/whole")).expect("arguments are JSON"));
}

#[test]
fn the_sdk_of_openai_reads_items_of_all_tools() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&["--store-responses"]);
    let report = sdks.report("openai_sdk.py", &[&url(&serve), "items"]);
    let custom = report["custom"].as_array().expect("a list");
    assert_eq!(custom[0], "custom_tool_call");
    assert!(custom[2..].iter().all(|input| *input == custom[1] && input.is_string()), "{custom:?}");
    let numbers = report["numbers"].as_array().expect("a list");
    assert_eq!(*numbers, (0..numbers.len()).map(|number| json!(number)).collect::<Vec<_>>());
    assert_eq!(report["namespace"], json!(["function_call", "eyes", "look"]));
    assert!(!text(&report, "/after").is_empty());
    assert_eq!(report["top_logprobs"], json!([2, 2, 2]));
    assert_eq!((&report["grown"], &report["stored"]), (&json!(true), &json!(true)));
    assert_eq!(report["deleted"], "NotFoundError");
    assert_eq!(report["cut"], json!(["incomplete", ""]), "the beginning of a call is no text");
}

/// Codex offers several types of tools, runs the commands in the answer, and prints the last text.
#[test]
fn codex_works_through_a_turn() {
    let Some(client) = client("codex") else { return };
    for probability in ["0", "1"] {
        let serve = Serve::start(&[WORDS, &["--tool-call-probability", probability, "--log-requests"]].concat());
        let folder = Folder::new();
        let Some(said) = codex(&client, &url(&serve), folder.path(), "Say hello") else { return };
        let events: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |kind: &str| events.iter().filter(|event| event["type"] == *kind).count();
        assert_eq!((of("turn.completed"), of("turn.failed"), of("error")), (1, 0, 0), "{said}");
        let answer = events.iter().find(|event| event["item"]["type"] == "agent_message").expect("an answer");
        assert!(!text(answer, "/item/text").is_empty(), "{said}");
        let requests = serve.log().matches("reason=").count();
        assert!(if probability == "0" { requests == 1 } else { requests > 1 }, "{requests} requests: {said}");
    }
}

#[test]
fn the_sdk_of_anthropic_parses_answers_of_a_type() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&[]);
    let report = sdks.report("anthropic_sdk.py", &[&url(&serve), "parse"]);
    assert!(report["whole"]["rain"].is_boolean() && report["whole"]["days"].is_i64(), "{report}");
    assert_eq!(report["streamed"], report["whole"]);
    assert_arguments(&report["plain"]);
    assert_eq!(report["refused"], json!([400, 400, 400]));
}

#[test]
fn the_sdk_of_openai_reads_vectors() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&[]);
    let report = sdks.report("openai_sdk.py", &[&url(&serve), "embeddings"]);
    assert_eq!(report["same"], json!([true, true, true]), "base64 and numbers are the same vectors");
    assert_eq!(report["equal texts"], json!([true, false]));
    assert_eq!((&report["short"], &report["indexes"], &report["tokens"]), (&json!(8), &json!([0, 1, 2]), &json!(7)));
}

#[test]
fn the_sdk_of_anthropic_calls_tools() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&["--image-tokens", "500"]);
    let report = sdks.report("anthropic_sdk.py", &[&url(&serve), "tools"]);
    assert_eq!((text(&report, "/stop_reason"), text(&report, "/name")), ("tool_use", "weather"));
    assert_arguments(&report["whole"]);
    for way in ["pieces", "final"] {
        assert_eq!(report[way], report["whole"], "{way}");
    }
    assert!(!text(&report, "/after").is_empty());
    assert!(report["after_tokens"].as_u64() > Some(500), "the image of the result counts");
}

#[test]
fn the_sdk_of_anthropic_reads_messages_and_errors() {
    let Some(sdks) = client("sdks") else { return };
    let serve = Serve::start(&[WORDS, FAULTS, &["--max-model-len", "4096"]].concat());
    let report = sdks.report("anthropic_sdk.py", &[&url(&serve)]);
    assert!(!text(&report, "/whole").is_empty());
    for way in ["pieces", "final"] {
        assert_eq!(report[way], report["whole"], "{way}");
    }
    assert_eq!(report["stop_reason"], "max_tokens");
    assert_eq!(report["usage"], report["final_usage"]);
    assert_eq!((&report["usage"][0], &report["usage"][1]), (&report["counted"], &json!(9)));
    let events = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(report["events"], json!(events));
    let errors = sdks.report("anthropic_sdk.py", &[&url(&serve), "errors"]);
    assert_classes(&errors);
    assert_eq!(errors["injected"]["529"]["class"], "OverloadedError");
    assert_eq!(text(&errors, "/unknown/body/error/type"), "not_found_error");
    for name in ["no turns", "long"] {
        assert_eq!(errors[name]["class"], "BadRequestError", "{name}");
    }
    assert!(text(&errors, "/error event/class").ends_with("Error"), "{errors}");
    assert_eq!(errors["retries"], 2);
}

#[test]
fn litellm_reads_answers_of_three_kinds_of_provider() {
    let Some(litellm) = client("litellm") else { return };
    let serve = Serve::start(WORDS);
    let report = litellm.report("litellm_sdk.py", &[&url(&serve)]);
    let mut texts = Vec::new();
    for provider in ["openai", "hosted_vllm", "anthropic"] {
        let answers = &report["providers"][provider];
        assert_eq!(answers["pieces"], answers["whole"], "{provider}");
        assert_eq!((&answers["finish_reason"], &answers["usage"][1]), (&json!("length"), &json!(9)), "{provider}");
        texts.push(text(answers, "/whole"));
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "the same chat has the same answer: {texts:?}");
    for provider in ["openai", "hosted_vllm", "anthropic"] {
        let call = &report["tools"][provider];
        assert_eq!((&call["name"], &call["finish_reason"]), (&json!("weather"), &json!("tool_calls")), "{provider}");
        assert!(call["whole"]["days"].is_i64() && call["pieces"] == call["whole"], "{provider}: {call}");
    }
    assert_eq!(report["text"], 4);
    let errors = json!({"unknown": "NotFoundError", "range": "BadRequestError", "busy": "RateLimitError",
                        "failed": "InternalServerError", "key": "AuthenticationError"});
    assert_eq!(report["errors"], errors);
}

/// Minimum time of an answer of eight tokens. A busy machine may deliver some of the tokens at once.
const LEAST_MS: f64 = 7.0 * 2.0;

/// Starts a server whose model has the tokenizer with which the benchmarks count tokens.
fn measured() -> Option<(Serve, String)> {
    let model = frontend_model()?;
    let model = model.to_str().expect("a path is a text").to_owned();
    let args = [&model, "--served-model-name", "sim", "--tokens", "random", "--inter-token-latency", "2ms"];
    Some((Serve::start(&args), model))
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a report is JSON")
}

/// The requests in a benchmark's result, as `vcr inspect convert` reads them. All must be complete.
fn converted(folder: &Folder, result: &str) -> Vec<Value> {
    let _ = folder.vcr(&["inspect", "convert", result, "-o", "requests.jsonl", "--force"]).ended(0);
    let text = std::fs::read_to_string(folder.path().join("requests.jsonl")).expect("a capture");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    let requests: Vec<Value> = lines.filter(|line| line["kind"] == "request").collect();
    for request in &requests {
        let outputs = request["gap_ns"].as_array().map_or(0, Vec::len) as u64 + 1;
        let later = request["gap_tokens"]
            .as_array()
            .map_or(outputs - 1, |tokens| tokens.iter().filter_map(Value::as_u64).sum());
        let first = request["first_tokens"].as_u64().unwrap_or(1);
        assert_eq!(Some(first + later), request["output_tokens"].as_u64(), "{request}");
        assert!(request["ttft_ns"].is_u64() && request["end_ns"].is_u64(), "{request}");
    }
    requests
}

#[test]
fn the_benchmark_of_vllm_counts_every_request() {
    let Some(program) = vllm_rs("0.33.0") else { return };
    let Some((serve, model)) = measured() else { return };
    let folder = Folder::new();
    for backend in ["openai", "openai-chat", "openai-responses"] {
        let file = format!("{backend}.json");
        let mut command = Command::new(&program);
        command.args(["bench", "serve", "--backend", backend, "--base-url", &url(&serve), "--model", "sim"]);
        command.args(["--tokenizer", &model, "--dataset-name", "random", "--random-input-len", "32"]);
        command.args(["--random-output-len", "8", "--num-prompts", "20", "--ignore-eos", "--save-result"]);
        command
            .args(["--save-detailed", "--result-filename", &file, "--result-dir"])
            .arg(folder.path())
            .env("HF_HUB_OFFLINE", "1");
        let said = ended(command);
        let report = read(&folder.path().join(file));
        assert_eq!((&report["completed"], &report["failed"]), (&json!(20), &json!(0)), "{backend}: {said}");
        assert_eq!(report["total_output_tokens"], 160, "{backend}: {said}");
        // The capture has every gap in the file, request by request.
        let requests = converted(&folder, &format!("{backend}.json"));
        assert_eq!(requests.len(), 20, "{backend}");
        assert!(requests.iter().all(|request| request["arrival_ns"].is_u64()), "{backend}");
        let gaps: usize = requests.iter().map(|request| request["gap_ns"].as_array().map_or(0, Vec::len)).sum();
        assert!(gaps > 20, "{backend}: {gaps} gaps");
    }
}

#[test]
fn guidellm_counts_every_request() {
    let Some(guidellm) = client("guidellm") else { return };
    let Some((serve, model)) = measured() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = guidellm.python(&["-m", "guidellm", "benchmark", "run", "--target", &url(&serve)]);
    command.args(["--rate-type", "synchronous", "--max-requests", "6", "--data", "prompt_tokens=32,output_tokens=8"]);
    command
        .args(["--processor", &model, "--disable-console-outputs", "--disable-progress", "--output-path"])
        .arg(&file);
    let said = ended(command);
    let report = read(&file);
    let benchmark = &report["benchmarks"][0];
    assert_eq!(
        benchmark["request_totals"],
        json!({"successful": 6, "errored": 0, "incomplete": 0, "total": 6}),
        "{said}"
    );
    for request in benchmark["requests"]["successful"].as_array().expect("requests") {
        assert_eq!(request["output_tokens"], 8);
        // The text of 32 random tokens may have another number of tokens when it is tokenized again.
        let prompt_tokens = request["prompt_tokens"].as_u64().expect("a number");
        assert!((28..=40).contains(&prompt_tokens), "{prompt_tokens} prompt tokens");
        let latency_s = request["request_latency"].as_f64().expect("a number");
        assert!(latency_s > LEAST_MS / 1e3, "eight tokens in {latency_s} s");
    }
}

#[test]
fn aiperf_counts_every_request() {
    let Some(aiperf) = client("aiperf") else { return };
    let Some((serve, model)) = measured() else { return };
    let folder = Folder::new();
    let mut command = aiperf.python(&["-m", "aiperf", "profile", "--model", "sim", "--url", &url(&serve)]);
    command.args(["--endpoint-type", "chat", "--streaming", "--tokenizer", &model, "--use-server-token-count"]);
    command.args(["--request-count", "10", "--concurrency", "2", "--isl", "32", "--osl", "8"]);
    command.args(["--extra-inputs", "ignore_eos:true", "--ui", "none", "--no-gpu-telemetry", "--artifact-dir"]);
    // In offline mode, the client takes a folder for the name of a cached model.
    command.arg(folder.path()).env_remove("HF_HUB_OFFLINE");
    let said = ended(command);
    let report = read(&folder.path().join("profile_export_aiperf.json"));
    let average = |name: &str| report[name]["avg"].as_f64().unwrap_or(f64::NAN);
    assert_eq!((average("request_count"), average("request_error_rate")), (10.0, 0.0), "{said}");
    assert_eq!((average("total_output_tokens"), average("total_usage_completion_tokens")), (80.0, 80.0), "{said}");
    assert!(average("request_latency") > LEAST_MS, "eight tokens: {said}");
    let requests = converted(&folder, "profile_export.jsonl");
    assert_eq!(requests.len(), 10, "{said}");
    assert!(requests.iter().all(|request| request["output_tokens"] == 8 && request["arrival_ns"].is_u64()));
}

/// Names of the series on a page that have the label `model_name="sim"`.
fn series(page: &str) -> std::collections::BTreeSet<&str> {
    let of_model = page.lines().filter(|line| line.contains("model_name=\"sim\""));
    of_model.filter_map(|line| line.split('{').next()).collect()
}

fn names(query: &str) -> Vec<&str> {
    let is_name = |part: &&str| part.starts_with("vllm:");
    query.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c))).filter(is_name).collect()
}

/// Once a request has been answered, each query has data in both formats of the page.
#[test]
fn the_queries_of_inference_perf_have_data() {
    let Some(inference_perf) = client("inference-perf") else { return };
    let queries = inference_perf.report("inference_perf_queries.py", &["sim"]);
    let queries = queries.as_object().expect("queries by metric");
    assert!(queries.len() > 25 && queries.contains_key("vllm:mm_cache_queries"), "{queries:?}");
    let serve = Serve::start(WORDS);
    let body = json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true});
    assert_eq!(serve.post("/v1/completions", &body).status, 200);
    for accept in ["*/*", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"] {
        let page = ureq::get(format!("{}/metrics", url(&serve))).header("accept", accept).call().expect("it is served");
        let page = page.into_body().read_to_string().expect("it is text");
        let series = series(&page);
        for query in queries.values().flat_map(|queries| queries.as_array().into_iter().flatten()) {
            let query = query.as_str().expect("a query is a text");
            // A counter may have either of its names.
            let mut parts = query.split(" or ").map(names).filter(|names| !names.is_empty());
            assert!(parts.any(|names| names.iter().all(|name| series.contains(name))), "{query}");
        }
    }
}
