//! Embeddings, pooling, classes, scores and ranks.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vcr_tests::Serve;

const EMBEDDINGS: &str = "/v1/embeddings";

fn numbers(vector: &Value) -> Vec<f32> {
    vector.as_array().expect("a vector").iter().map(|number| number.as_f64().expect("a number") as f32).collect()
}

fn vectors(serve: &Serve, request: &Value) -> Vec<Vec<f32>> {
    let reply = serve.post(EMBEDDINGS, request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["data"].as_array().expect("vectors").iter().map(|item| numbers(&item["embedding"])).collect()
}

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[test]
fn texts_that_share_words_have_close_vectors() {
    let serve = Serve::start(&[]);
    let input = [
        "The cat sat on the mat and looked at the rain.",
        "The cat sat on the mat and looked at the snow.",
        "Interest rates rose again in the third quarter.",
        "The cat sat on the mat and looked at the rain.",
    ];
    let vectors = vectors(&serve, &json!({ "input": input }));
    assert!(vectors.iter().all(|vector| vector.len() == 384));
    let [same, close, far] = [3, 1, 2].map(|other| cosine(&vectors[0], &vectors[other]));
    assert!((same - 1.0).abs() < 1e-5 && close > 0.5 && far < 0.25, "{same} {close} {far}");
}

#[test]
fn an_input_is_text_lists_tokens_or_a_chat() {
    let serve = Serve::start(&["--embedding-dimensions", "16"]);
    let tokens = serve.post("/tokenize", &json!({"prompt": "Hello there"})).body["tokens"].clone();
    let text = vectors(&serve, &json!({"input": "Hello there"}));
    assert_eq!((text.len(), text[0].len()), (1, 16));
    assert_eq!(vectors(&serve, &json!({"input": tokens})), text);
    assert_eq!(vectors(&serve, &json!({"input": [tokens, tokens]})), [text[0].clone(), text[0].clone()]);
    let chat = json!([{"role": "user", "content": "Hello there"}]);
    let of_chat = vectors(&serve, &json!({"messages": chat}));
    assert_eq!(vectors(&serve, &json!({"input": chat})), of_chat);
    assert_eq!(vectors(&serve, &json!({"messages": [chat, chat]})).len(), 2);
    assert_ne!(of_chat, text, "the template is part of the prompt");

    let reply = serve.post(EMBEDDINGS, &json!({"input": [[1, 2, 3], [4, 5]], "model": "sim"})).body;
    assert!(reply["id"].as_str().is_some_and(|id| id.starts_with("embd-")), "{reply}");
    assert_eq!(
        (&reply["object"], &reply["model"], &reply["data"][1]["index"]),
        (&json!("list"), &json!("sim"), &json!(1))
    );
    assert_eq!((&reply["usage"]["prompt_tokens"], &reply["usage"]["total_tokens"]), (&json!(5), &json!(5)));
    let cut = |side: &str| {
        let request = json!({"input": [1, 2, 3, 4], "truncate_prompt_tokens": 2, "truncation_side": side});
        vectors(&serve, &request)
    };
    assert_eq!(cut("right"), vectors(&serve, &json!({"input": [1, 2]})));
    assert_eq!(cut("left"), vectors(&serve, &json!({"input": [3, 4]})));
}

#[test]
fn vectors_are_encoded_and_shortened_as_asked() {
    let serve = Serve::start(&[]);
    let ask = |further: Value| {
        let mut request = json!({"input": "Hello there, how are you?"});
        for (key, value) in further.as_object().expect("fields") {
            request[key] = value.clone();
        }
        serve.post(EMBEDDINGS, &request).body["data"][0]["embedding"].clone()
    };
    let decoded = |text: &Value, read: fn([u8; 4]) -> f32| -> Vec<f32> {
        let bytes = STANDARD.decode(text.as_str().expect("a text")).expect("base64");
        bytes.chunks(4).map(|number| read(number.try_into().expect("four bytes"))).collect()
    };
    let whole = numbers(&ask(json!({})));
    assert_eq!(decoded(&ask(json!({"encoding_format": "base64"})), f32::from_le_bytes), whole);
    let big = ask(json!({"encoding_format": "base64", "endianness": "big"}));
    assert_eq!(decoded(&big, f32::from_be_bytes), whole);
    // The upper half of a 32-bit float is a bfloat16, except for rounding.
    let half = ask(json!({"encoding_format": "base64", "embed_dtype": "bfloat16", "endianness": "big"}));
    let half = STANDARD.decode(half.as_str().expect("a text")).expect("base64");
    assert_eq!(half.len(), 2 * whole.len());
    for (half, whole) in half.chunks(2).zip(&whole) {
        let half = f32::from_be_bytes([half[0], half[1], 0, 0]);
        assert!((half - whole).abs() <= whole.abs() / 256.0, "{half} {whole}");
    }
    let short = numbers(&ask(json!({"dimensions": 32})));
    assert!((cosine(&short, &short) - 1.0).abs() < 1e-5, "{short:?}");
    let scale = cosine(&short, &whole[..32]);
    for (short, whole) in short.iter().zip(&whole) {
        assert!((short * scale - whole).abs() < 1e-5, "{short} {whole}: the same direction, of length 1");
    }
    let raw = numbers(&ask(json!({"use_activation": false})));
    assert!(cosine(&raw, &raw) > 2.0);

    let url = format!("http://{}{EMBEDDINGS}", serve.address());
    let request =
        json!({"input": [[1], [2, 3]], "encoding_format": "bytes", "dimensions": 8, "embed_dtype": "fp8_e4m3"});
    let mut answer = ureq::post(url).content_type("application/json").send(request.to_string()).expect("an answer");
    let metadata = answer.headers()["metadata"].to_str().expect("a text").to_owned();
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    assert_eq!((&metadata["data"][1]["start"], &metadata["data"][1]["shape"]), (&json!(8), &json!([8])));
    assert_eq!(metadata["data"][0]["embed_dtype"], "fp8_e4m3");
    assert_eq!(answer.body_mut().read_to_vec().expect("bytes").len(), 16);
}

#[test]
fn cohere_asks_for_the_same_vectors() {
    let serve = Serve::start(&[]);
    let of = |body: Value| serve.post("/v2/embed", &body).body;
    let reply = of(json!({"texts": ["a cat", "a dog"], "embedding_types": ["float", "ubinary", "base64"]}));
    let expected = vectors(&serve, &json!({"input": ["a cat", "a dog"]}));
    assert_eq!(numbers(&reply["embeddings"]["float"][1]), expected[1], "{reply}");
    assert_eq!(reply["embeddings"]["ubinary"][0].as_array().map(Vec::len), Some(48));
    assert_eq!((&reply["texts"][0], &reply["response_type"]), (&json!("a cat"), &json!("embeddings_by_type")));
    assert!(reply["meta"]["billed_units"]["input_tokens"].as_u64() > Some(0), "{reply}");
    let image = of(json!({"images": ["http://a/b.png"], "output_dimension": 8}));
    assert_eq!(image["embeddings"]["float"][0].as_array().map(Vec::len), Some(8), "{image}");
    assert!(image["meta"]["billed_units"]["image_tokens"].as_u64() > Some(256), "{image}");
    for (body, message) in [
        (json!({"texts": []}), "Exactly one of texts, images, or inputs must be provided"),
        (json!({"texts": ["a"], "images": ["b"]}), "Exactly one of texts, images, or inputs must be provided"),
        (
            json!({"texts": ["a b c d e"], "truncate": "NONE", "max_tokens": 1}),
            "exceeds max_tokens=1 with truncate=NONE",
        ),
        (
            json!({"texts": ["a"], "embedding_types": ["binary"], "output_dimension": 4}),
            "Embedding dimension must be a multiple of 8",
        ),
    ] {
        let reply = serve.post("/v2/embed", &body);
        let error = &reply.body["error"];
        assert!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{body}: {error}");
        assert_eq!(reply.status, 400);
    }
}

#[test]
fn errors_are_those_of_vllm() {
    let serve = Serve::start(&["--max-model-len", "50", "--embedding-dimensions", "8"]);
    let cases = [
        (EMBEDDINGS, json!({"input": "a", "model": "x"}), 404, "The model `x` does not exist."),
        (EMBEDDINGS, json!({"model": "sim"}), 400, "missing field `input`"),
        (EMBEDDINGS, json!({"input": []}), 400, "You must pass at least one prompt"),
        (EMBEDDINGS, json!({"input": ""}), 400, "prompt cannot be empty"),
        (EMBEDDINGS, json!({"input": {"a": 1}}), 400, "input: expected a text"),
        (EMBEDDINGS, json!({"input": vec![1; 51]}), 400, "your prompt contains 51 input tokens"),
        (EMBEDDINGS, json!({"input": "a", "dimensions": 9}), 400, "dimensions in range [1, 8], got 9"),
        (EMBEDDINGS, json!({"input": "a", "dimensions": 0}), 400, "dimensions in range [1, 8], got 0"),
        (EMBEDDINGS, json!({"input": "a", "encoding_format": "hex"}), 400, "unknown variant `hex`"),
        (EMBEDDINGS, json!({"input": "a", "embed_dtype": "int8"}), 400, "unknown variant `int8`"),
        (EMBEDDINGS, json!({"input": "a", "normalize": true}), 400, "use `use_activation` instead"),
        (EMBEDDINGS, json!({"input": "a", "truncate_prompt_tokens": 51}), 400, "is greater than max_model_len"),
        ("/pooling", json!({"input": "a", "dimensions": 4}), 400, "dimensions is currently not supported"),
        ("/pooling", json!({"input": "a", "task": "token_embed"}), 400, "Unsupported task: 'token_embed'"),
        ("/score", json!({"text_1": ["a", "b"], "text_2": ["c"]}), 400, "must be either 1:1, 1:N or N:N"),
        ("/score", json!({"text_1": "a"}), 400, "missing field `documents`"),
        ("/rerank", json!({"query": "a", "documents": []}), 400, "At least one text_pair element"),
        ("/rerank", json!({"query": ["a"], "documents": ["a"]}), 400, "query: expected a text"),
        (
            "/rerank",
            json!({"query": "a", "documents": ["a"], "max_tokens_per_doc": 50}),
            400,
            "max_tokens_per_doc (50) must be less than max_model_len (50).",
        ),
    ];
    for (path, body, status, message) in cases {
        let reply = serve.post(path, &body);
        let error = &reply.body["error"];
        assert_eq!((reply.status, error["code"].as_u64()), (status, Some(status.into())), "{body}: {}", reply.body);
        assert!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{body}: {error}");
    }
    assert_eq!(vectors(&serve, &json!({"input": vec![1; 50]})).len(), 1, "a prompt may fill the model's length");
    assert_eq!(serve.get("/load").body["server_load"], 0);
}

/// The engine computes prompts of embeddings: they wait for each other, take time, and are cached.
#[test]
fn prompts_take_the_time_of_a_prefill() {
    let serve = Serve::start(&["--prefill-overhead", "100ms", "--max-num-seqs", "1"]);
    let begin = Instant::now();
    assert_eq!(vectors(&serve, &json!({"input": [vec![1; 40], vec![2; 40], vec![3; 40]]})).len(), 3);
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    assert_eq!(vectors(&serve, &json!({"input": vec![1; 40]})).len(), 1);
    let url = format!("http://{}/metrics", serve.address());
    let told = ureq::get(url).call().expect("it is served").into_body().read_to_string().expect("it is text");
    for line in [
        r#"vllm:request_success_total{model_name="sim",engine="0",finished_reason="stop"} 4"#,
        r#"vllm:prompt_tokens_total{model_name="sim",engine="0"} 160"#,
        r#"vllm:generation_tokens_total{model_name="sim",engine="0"} 0"#,
        r#"vllm:prefix_cache_hits_total{model_name="sim",engine="0"} 32"#,
    ] {
        assert!(told.lines().any(|other| other == line), "{line} is not in\n{told}");
    }
}

#[test]
fn pairs_are_scored_and_documents_ranked() {
    let serve = Serve::start(&[]);
    let query = "the cat sat on the mat";
    let documents = ["interest rates rose again", "the cat sat on a mat", "the cat sat on the mat"];
    let scored = serve.post("/v1/score", &json!({"text_1": query, "text_2": documents})).body;
    let scores: Vec<f64> =
        scored["data"].as_array().expect("scores").iter().filter_map(|item| item["score"].as_f64()).collect();
    assert!(scores[0] < 0.3 && scores[1] > 0.4 && (scores[2] - 1.0).abs() < 1e-6, "{scores:?}");
    for names in [["queries", "documents"], ["queries", "items"], ["data_1", "data_2"]] {
        let reply = serve.post("/score", &json!({names[0]: [query], names[1]: documents}));
        assert_eq!(reply.body["data"], scored["data"], "{names:?}");
    }
    let pairs = serve.post("/score", &json!({"text_1": documents, "text_2": documents})).body;
    let all_equal = pairs["data"].as_array().expect("scores").iter().all(|item| item["score"].as_f64() > Some(0.999));
    assert!(all_equal && pairs["data"].as_array().map(Vec::len) == Some(3), "{pairs}");

    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let ranked = serve.post(path, &json!({"query": query, "documents": documents, "top_n": 2})).body;
        let results = ranked["results"].as_array().expect("results");
        let order: Vec<_> = results.iter().filter_map(|result| result["index"].as_u64()).collect();
        assert_eq!(order, [2, 1], "{path}: {ranked}");
        assert_eq!(results[0]["document"]["text"], documents[2]);
        assert_eq!(results[1]["relevance_score"], scored["data"][1]["score"]);
        assert_eq!(ranked["usage"]["prompt_tokens"], scored["usage"]["prompt_tokens"]);
    }
}

#[test]
fn pooling_gives_embeddings_and_classes_have_probabilities() {
    let serve = Serve::start(&[]);
    let pooled = serve.post("/pooling", &json!({"input": ["a cat", "a dog"]})).body;
    assert_eq!(pooled["data"][1]["object"], "pooling");
    assert_eq!(numbers(&pooled["data"][0]["data"]), vectors(&serve, &json!({"input": "a cat"}))[0]);
    let classes = serve.post("/classify", &json!({"input": ["a cat", "a dog", "a cat"]})).body;
    let data = classes["data"].as_array().expect("classes");
    assert_eq!((&data[0]["probs"], &data[0]["label"]), (&data[2]["probs"], &data[2]["label"]));
    for class in data {
        let probs = numbers(&class["probs"]);
        assert!((probs.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{class}");
        let best = if probs[1] > probs[0] { "LABEL_1" } else { "LABEL_0" };
        assert_eq!((&class["label"], &class["num_classes"]), (&json!(best), &json!(2)));
    }
}
