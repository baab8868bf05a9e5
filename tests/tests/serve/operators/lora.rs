//! Adapters that are loaded and unloaded while the server runs.

use serde_json::{Value, json};
use vcr_tests::{Frontend, FrontendOptions, Play, Reply, Serve, wait_until};

fn load(serve: &Serve, name: &str) -> Reply {
    serve.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": format!("/adapters/{name}")}))
}

fn unload(serve: &Serve, name: &str) -> Reply {
    serve.post("/v1/unload_lora_adapter", &json!({"lora_name": name}))
}

fn text(serve: &Serve, path: &str, body: &Value) -> (u16, String) {
    let url = format!("http://{}{path}", serve.address());
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let answer = agent.post(url).content_type("application/json").send(body.to_string()).expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_to_string().expect("a text"))
}

fn names(serve: &Serve) -> Vec<String> {
    let models = serve.get("/v1/models").body;
    let models = models["data"].as_array().expect("models").iter();
    models.filter_map(|model| model["id"].as_str().map(str::to_owned)).collect()
}

fn message(reply: &Reply) -> &str {
    reply.body["error"]["message"].as_str().unwrap_or_default()
}

fn ask(serve: &Serve, model: &str) -> u16 {
    serve.post("/v1/completions", &json!({"model": model, "prompt": "x", "max_tokens": 1})).status
}

#[test]
fn adapters_are_loaded_listed_used_and_unloaded() {
    let serve = Serve::start(&["--max-loras", "2"]);
    assert_eq!(ask(&serve, "fine"), 404);
    let body = json!({"lora_name": "fine", "lora_path": "/adapters/fine"});
    let loaded = text(&serve, "/v1/load_lora_adapter", &body);
    assert_eq!(loaded, (200, "Success: LoRA adapter 'fine' added successfully.".to_owned()));
    let models = serve.get("/v1/models").body;
    let card = &models["data"][1];
    assert_eq!((&card["id"], &card["root"]), (&json!("fine"), &json!("/adapters/fine")));
    assert_eq!((&card["parent"], &card["max_model_len"]), (&json!("sim"), &Value::Null));
    assert_eq!(ask(&serve, "fine"), 200);
    assert_eq!(serve.post("/v1/embeddings", &json!({"model": "fine", "input": "x"})).body["model"], "fine");

    let again = load(&serve, "fine");
    assert_eq!((again.status, &again.body["error"]["param"]), (400, &json!("lora_name")));
    assert!(message(&again).contains("LoRA adapter `fine` is already loaded."), "{}", again.body);
    let in_place = json!({"lora_name": "fine", "lora_path": "/adapters/finer", "load_inplace": true});
    assert_eq!(serve.post("/v1/load_lora_adapter", &in_place).status, 200);
    assert_eq!(serve.get("/v1/models").body["data"][1]["root"], "/adapters/finer");
    assert_eq!(names(&serve), ["sim", "fine"]);

    let wrong = serve.post("/v1/unload_lora_adapter", &json!({"lora_name": "fine", "lora_int_id": 7}));
    assert_eq!(
        (wrong.status, message(&wrong)),
        (400, "requested lora_int_id 7 does not match loaded adapter `fine` with id 1")
    );
    let unloaded = text(&serve, "/v1/unload_lora_adapter", &json!({"lora_name": "fine"}));
    assert_eq!(unloaded, (200, "Success: LoRA adapter 'fine' removed successfully.".to_owned()));
    assert_eq!((names(&serve), ask(&serve, "fine")), (vec!["sim".to_owned()], 404));
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let serve = Serve::start(&["--max-loras", "1", "--served-model-name", "one", "two"]);
    for (name, path, expected) in [
        ("", "/a", "lora_name must not be empty"),
        ("a", " ", "lora_path must not be empty"),
        ("two", "/a", "LoRA adapter `two` conflicts with a served base model"),
    ] {
        let reply = serve.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": path}));
        assert_eq!((reply.status, message(&reply)), (400, expected));
    }
    let incomplete = serve.post("/v1/load_lora_adapter", &json!({"lora_name": "a"}));
    assert!(incomplete.status == 400 && message(&incomplete).contains("missing field `lora_path`"));
    let unknown = unload(&serve, "a");
    assert_eq!((unknown.status, message(&unknown)), (404, "The model `a` does not exist."));
    assert!(message(&unload(&serve, "")).contains("'lora_name' needs to be provided"));
    let without = Serve::start(&[]);
    let disabled = load(&without, "a");
    assert_eq!((disabled.status, message(&disabled)), (400, "engine was not started with LoRA enabled"));
}

/// As in vLLM's workers, the least recently used adapter is evicted and can then no longer be unloaded. A request
/// for it loads it again.
#[test]
fn as_many_adapters_stay_loaded_as_there_is_room_for() {
    let serve = Serve::start(&["--max-loras", "1", "--max-cpu-loras", "2"]);
    for name in ["a", "b", "c"] {
        assert_eq!(load(&serve, name).status, 200, "{name}");
    }
    let evicted = unload(&serve, "a");
    assert_eq!((evicted.status, message(&evicted)), (500, "engine rejected removal of LoRA adapter `a` with id 1"));
    assert_eq!(names(&serve), ["sim", "a", "b", "c"]);
    assert_eq!(ask(&serve, "a"), 200);
    assert_eq!(unload(&serve, "a").status, 200, "its request has loaded it");
    assert_eq!(names(&serve), ["sim", "b", "c"]);
    vcr_tests::Folder::new()
        .vcr(&["serve", "--port", "0", "--max-loras", "3", "--max-cpu-loras", "2"])
        .failed(2, &["max_cpu_loras (2) must be >= max_loras (3)"]);
}

/// Adapters from the command line are loaded before the server reports that it is ready.
#[test]
fn adapters_from_the_start_can_be_unloaded() {
    let serve = Serve::start(&["--lora-modules", "one=/1", "two=/2"]);
    assert_eq!(unload(&serve, "one").status, 200);
    assert_eq!(load(&serve, "three").status, 200);
    assert_eq!(names(&serve), ["sim", "two", "three"]);
}

#[test]
fn metrics_name_adapters_only_while_requests_use_them() {
    let serve = Serve::start(&["--max-loras", "1", "--inter-token-latency", "20ms"]);
    for name in ["a", "b"] {
        assert_eq!(load(&serve, name).status, 200);
    }
    let told = || {
        let url = format!("http://{}/metrics", serve.address());
        let page = ureq::get(url).call().expect("it is served").into_body().read_to_string().expect("it is text");
        page.lines().find(|line| line.starts_with("vllm:lora_requests_info{")).unwrap_or_default().to_owned()
    };
    let long = |model: &str| json!({"model": model, "prompt": "x", "max_tokens": 5000, "ignore_eos": true});
    let (one, other) = (serve.begin("/v1/completions", &long("a")), serve.begin("/v1/completions", &long("b")));
    wait_until("one runs and the other waits for its slot", || {
        let line = told();
        let has = |running: &str, waiting: &str| {
            line.contains(&format!("running_lora_adapters=\"{running}\""))
                && line.contains(&format!("waiting_lora_adapters=\"{waiting}\""))
        };
        has("a", "b") || has("b", "a")
    });
    drop((one, other));
    wait_until("nothing is left", || told().is_empty());
}

/// vLLM's own frontend gives the same answers to the same calls.
#[test]
fn the_lifecycle_is_that_of_vllm() {
    let env = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let Some(mut frontend) = Frontend::start("0.33.0", &FrontendOptions { env, ..FrontendOptions::default() }) else {
        return;
    };
    let args = ["--max-loras", "2"];
    let _play = Play::start(&frontend.handshake_address(), &args);
    frontend.wait_until_it_serves();
    let serve = Serve::start(&args);
    let (load, unload) = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter");
    let adapter = |name: &str| json!({"lora_name": name, "lora_path": format!("org/{name}")});
    for (path, body) in [
        (load, adapter("a")),
        (load, adapter("a")),
        (load, json!({"lora_name": "a", "lora_path": "org/other", "load_inplace": true})),
        (load, adapter("sim")),
        (load, json!({"lora_name": "", "lora_path": "org/x"})),
        (load, json!({"lora_name": "x", "lora_path": ""})),
        (load, json!({"lora_name": "x"})),
        (load, adapter("b")),
        (load, adapter("c")),
        (unload, json!({"lora_name": "a"})),
        (unload, json!({"lora_name": "b", "lora_int_id": 9})),
        (unload, json!({"lora_name": "b", "lora_int_id": 2})),
        (unload, json!({"lora_name": "b"})),
        (unload, json!({"lora_name": ""})),
        (unload, json!({})),
    ] {
        let theirs = frontend.post(path, &body);
        let (status, ours) = text(&serve, path, &body);
        let ours = serde_json::from_str(&ours).unwrap_or(Value::String(ours));
        // The parsers report different positions in the body. One of the bodies contains `model`.
        let place = |body: &Value| body.to_string().split(" at line").next().map(str::to_owned);
        assert_eq!((status, place(&ours)), (theirs.status, place(&theirs.body)), "{path} {body}");
    }
    let cards = |models: Value| -> Vec<Value> {
        let models = models["data"].as_array().expect("models").iter();
        models.map(|card| json!([card["id"], card["parent"], card["max_model_len"].is_null()])).collect()
    };
    assert_eq!(cards(serve.get("/v1/models").body), cards(frontend.get("/v1/models").body));
}
