//! `/generate`.

use serde_json::{Value, json};

use crate::{generate, prompt, serve};

#[test]
fn text_and_tokens_are_answered_with_both() {
    let serve = serve(4000, &[]);
    let sampling_params = json!({"max_new_tokens": 5, "ignore_eos": true});
    let by_text = serve.post("/generate", &json!({"text": "Tell me", "sampling_params": sampling_params})).body;
    let meta = &by_text["meta_info"];
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 5}), "{by_text}");
    assert_eq!((&meta["completion_tokens"], &meta["weight_version"]), (&json!(5), &json!("default")));
    assert!(meta["e2e_latency"].is_f64() && meta["id"].as_str().is_some_and(|id| id.len() == 32), "{meta}");
    assert_eq!(by_text["output_ids"].as_array().map(Vec::len), Some(5));
    assert!(by_text["text"].as_str().is_some_and(|text| !text.is_empty()));

    let by_ids = generate(&serve, &prompt(1, 40), 3);
    assert_eq!((&by_ids["meta_info"]["prompt_tokens"], by_ids.get("index")), (&json!(40), None));
    // A list with one prompt is a batch. Several answers to one prompt are a list.
    let body = json!({
        "input_ids": [prompt(1, 40), prompt(2, 30)], "rid": "mine",
        "sampling_params": [{"max_new_tokens": 3, "ignore_eos": true, "temperature": 0}, {"max_new_tokens": 2, "ignore_eos": true, "n": 2}],
    });
    let batch = serve.post("/generate", &body).body;
    let facts: Vec<_> = batch
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| {
            (one["index"].clone(), one["meta_info"]["id"].clone(), one["meta_info"]["completion_tokens"].clone())
        })
        .collect();
    let wanted = [(0, "mine_0", 3), (1, "mine_1", 2), (2, "mine_1", 2)];
    assert_eq!(facts, wanted.map(|(index, id, tokens)| (json!(index), json!(id), json!(tokens))));
    assert_eq!(batch[0]["output_ids"], by_ids["output_ids"], "the same prompt has the same answer");
}

#[test]
fn an_answer_ends_by_stops_and_says_which() {
    let serve = serve(4000, &["--tokens", "echo"]);
    let ask =
        |params: Value| serve.post("/generate", &json!({"text": "one two three", "sampling_params": params})).body;
    let whole = ask(json!({"max_new_tokens": 50}));
    assert_eq!(whole["meta_info"]["finish_reason"]["type"], "stop", "{whole}");
    assert!(whole["meta_info"]["finish_reason"]["matched"].is_u64(), "the token that ends a text: {whole}");
    let cut = ask(json!({"max_new_tokens": 50, "stop": [" three"]}));
    assert_eq!(cut["meta_info"]["finish_reason"], json!({"type": "stop", "matched": " three"}));
    assert!(cut["text"].as_str().is_some_and(|text| text.ends_with("two")), "{cut}");
    let kept = ask(json!({"max_new_tokens": 50, "stop": " three", "no_stop_trim": true}));
    assert!(kept["text"].as_str().is_some_and(|text| text.ends_with("three")), "{kept}");
}

#[test]
fn each_event_of_a_stream_has_the_answer_so_far() {
    let serve = serve(4000, &["--decode-step-time", "5ms"]);
    let body = json!({
        "text": "Tell me", "stream": true, "sampling_params": {"max_new_tokens": 6, "ignore_eos": true, "temperature": 0},
        "lora_path": null, "return_logprob": false, "logprob_start_len": -1,
    });
    let mut events = serve.stream("/generate", &body);
    assert_eq!(events.pop(), Some(Err("[DONE]".to_owned())));
    let events: Vec<Value> = events.into_iter().map(|event| event.expect("JSON")).collect();
    assert!(events.len() > 3, "{events:?}");
    for pair in events.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|event| event["output_ids"].as_array().expect("tokens"));
        assert!(after.starts_with(before), "{pair:?}");
        assert_eq!(pair[0]["meta_info"]["finish_reason"], Value::Null);
    }
    let last = events.last().expect("there are events");
    assert_eq!(last["meta_info"]["completion_tokens"], 6);
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "length");
    let plain = serve.post("/generate", &json!({"text": "Tell me", "sampling_params": body["sampling_params"]})).body;
    assert_eq!(plain["output_ids"], last["output_ids"]);
}

#[test]
fn logprobs_of_tokens_and_of_prompts() {
    let serve = serve(4000, &[]);
    let ask = |more: Value| {
        let mut body = json!({
            "input_ids": prompt(3, 6), "return_logprob": true,
            "sampling_params": {"max_new_tokens": 3, "ignore_eos": true},
        });
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        serve.post("/generate", &body).body["meta_info"].clone()
    };
    let plain = ask(json!({}));
    assert_eq!((&plain["input_token_logprobs"], &plain["output_token_logprobs_length"]), (&json!([]), &json!(3)));
    let first = &plain["output_token_logprobs"][0];
    assert!(first[0].as_f64().is_some_and(|logprob| logprob <= 0.0) && first[1].is_u64() && first[2].is_null());
    let all = ask(json!({"logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": true}));
    let input = all["input_token_logprobs"].as_array().expect("a list");
    assert_eq!((input.len(), &input[0]), (6, &json!([null, prompt(3, 6)[0], null])));
    assert_eq!(input[5][1], json!(prompt(3, 6)[5]));
    assert_eq!(all["input_top_logprobs"].as_array().map(Vec::len), Some(6));
    assert_eq!(all["output_top_logprobs"][2].as_array().map(Vec::len), Some(2));
    assert!(all["output_token_logprobs"][0][2].is_string(), "{all}");
    let later = ask(json!({"logprob_start_len": 4}));
    assert_eq!(later["input_token_logprobs"].as_array().map(Vec::len), Some(2), "{later}");
    assert_eq!(later["input_token_logprobs"][0], json!([null, prompt(3, 6)[4], null]));
}

#[test]
fn what_is_no_request_is_refused_in_sglangs_form() {
    let serve = serve(400, &[]);
    for (body, needle) in [
        (json!({}), "Either text, input_ids or input_embeds should be provided."),
        (json!({"text": "a", "input_ids": [1]}), "Either text, input_ids or input_embeds"),
        (json!({"input_ids": []}), "input_ids cannot be empty."),
        (json!({"input_ids": prompt(1, 500)}), "The input (500 tokens) is longer than the model's context length"),
        (json!({"text": 5}), "Prompt"),
        (json!({"text": "a", "sampling_params": {"temperature": -1}}), "temperature"),
        (json!({"text": "a", "sampling_params": {"n": 0}}), "invalid n 0: expected 1 to 128"),
        (
            json!({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}),
            "Only one of regex, json_schema, or ebnf",
        ),
        (json!({"text": "a", "return_logprob": true, "logprob_start_len": 99}), "invalid logprob_start_len 99"),
        (json!({"text": "a", "lora_path": "x"}), "`x` does not exist"),
        (json!({"text": ["a", "b"], "rid": ["r"]}), "The specified rids length mismatch with the batch_size"),
        (json!({"text": ["a", "b"], "rid": ["r", "r"]}), "Duplicate request IDs detected within the request: {\"r\"}"),
        (json!({"text": ["a", "b"], "extra_key": ["k"]}), "The length of extra_key should be equal to the batch size."),
        (json!({"text": ["a", "b"], "sampling_params": []}), "The length of sampling_params should be equal"),
        (json!({"text": ["a", "b"], "return_logprob": [true, true, true]}), "The length of return_logprob should be"),
        (json!({"text": ["a", "b"], "bootstrap_room": [1]}), "The length of bootstrap_room should be equal"),
        (json!({"text": "a", "bootstrap_room": "x"}), "invalid bootstrap_room \"x\": expected a whole number"),
        (json!({"text": "a", "bootstrap_port": 70000}), "invalid bootstrap_port 70000: expected 0 to 65535"),
        (json!([1]), "expected"),
    ] {
        let reply = serve.post("/generate", &body);
        let message = reply.body["error"]["message"].as_str().unwrap_or_default();
        assert!((400..500).contains(&reply.status) && message.contains(needle), "{body}: {}", reply.body);
    }
    let image = serve.post("/generate", &json!({"text": "a", "image_data": "x"}));
    assert_eq!((image.status, &image.body["error"]["message"]), (501, &json!("image_data is not simulated.")));
    // The stream has begun when the server checks its request.
    let events = serve.stream("/generate", &json!({"text": "a", "stream": true, "sampling_params": {"top_p": 7}}));
    let error = events[0].as_ref().expect("JSON")["error"].clone();
    assert_eq!((&error["code"], &error["type"]), (&json!(400), &json!("invalid_request_error")), "{error}");
    assert_eq!(events.last(), Some(&Err("[DONE]".to_owned())));
}
