//! Responses that the server stores.

use serde_json::{Value, json};
use vcr_tests::Serve;

#[test]
fn a_response_is_continued_fetched_and_deleted() {
    let serve = Serve::start(&["--store-responses"]);
    let asked = |further: Value| {
        let mut request = json!({"model": "sim", "input": "Hello", "max_output_tokens": 8});
        for (key, value) in further.as_object().expect("fields") {
            request[key] = value.clone();
        }
        request
    };
    let first = serve.post("/v1/responses", &asked(json!({}))).body;
    let id = first["id"].as_str().expect("an id");
    let path = format!("/v1/responses/{id}");
    assert_eq!(serve.get(&path).body, first);
    let second = serve.post("/v1/responses", &asked(json!({"previous_response_id": id}))).body;
    assert_eq!(second["previous_response_id"], id);
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().expect("a count");
    // The prompt also contains the first question and its answer.
    assert!(tokens(&second) > 2 * tokens(&first), "{second}");

    let events = serve.stream("/v1/responses", &asked(json!({"stream": true})));
    let last = events.iter().flatten().last().expect("an end")["response"].clone();
    assert_eq!(serve.get(&format!("/v1/responses/{}", last["id"].as_str().expect("an id"))).body, last);

    let unkept = serve.post("/v1/responses", &asked(json!({"store": false}))).body;
    assert_eq!(serve.get(&format!("/v1/responses/{}", unkept["id"].as_str().expect("an id"))).status, 404);
    assert_eq!(serve.post(&format!("{path}/cancel"), &json!({})).status, 400);
    assert_eq!(serve.delete(&path).body, json!({"id": id, "object": "response", "deleted": true}));
    for reply in [serve.get(&path), serve.delete(&path), serve.post(&format!("{path}/cancel"), &json!({}))] {
        let message = format!("Response with id '{id}' not found.");
        assert_eq!((reply.status, &reply.body["error"]["message"]), (404, &json!(message)));
    }
    let odd = serve.post("/v1/responses", &asked(json!({"previous_response_id": "7"})));
    assert_eq!((odd.status, &odd.body["error"]["param"]), (400, &json!("previous_response_id")));
}

/// vLLM, too, ignores `store` unless its variable is set.
#[test]
fn nothing_is_stored_without_the_option() {
    let request = json!({"input": "Hello", "max_output_tokens": 2, "store": true});
    let serve = Serve::start(&[]);
    let first = serve.post("/v1/responses", &request).body;
    let id = first["id"].as_str().expect("an id");
    let mut second = request.clone();
    second["previous_response_id"] = json!(id);
    for reply in [serve.get(&format!("/v1/responses/{id}")), serve.post("/v1/responses", &second)] {
        let message = reply.body["error"]["message"].as_str().expect("a text");
        assert!(
            reply.status == 404 && message.starts_with(&format!("Response with id '{id}' not found.")),
            "{reply:?}"
        );
        assert!(message.contains("--store-responses"), "{reply:?}");
    }
    for (value, status) in [("1", 200), ("0", 404)] {
        let serve = Serve::start_with(&[("VLLM_ENABLE_RESPONSES_API_STORE", value)], &[]);
        let id = serve.post("/v1/responses", &request).body["id"].as_str().expect("an id").to_owned();
        assert_eq!(serve.get(&format!("/v1/responses/{id}")).status, status, "{value}");
    }
}

/// The memory of stored responses is bounded, however large each response is.
#[test]
fn stored_responses_have_a_budget() {
    const BYTES: usize = 8 << 20;
    let serve = Serve::start(&["--store-responses", "--stored-responses-memory", "20MiB"]);
    let request = |bytes: usize| {
        let prefix = "x".repeat(bytes);
        json!({"input": "Hello", "max_output_tokens": 1, "metadata": {"a": prefix}})
    };
    let stored = |id: &str| serve.get(&format!("/v1/responses/{id}")).status == 200;
    let ask =
        |bytes: usize| serve.post("/v1/responses", &request(bytes)).body["id"].as_str().expect("an id").to_owned();
    let ids: Vec<String> = (0..20).map(|_| ask(BYTES)).collect();
    let kept: Vec<bool> = ids.iter().map(|id| stored(id)).collect();
    assert_eq!(kept, [vec![false; 18], vec![true; 2]].concat());
    let too_large = ask(3 * BYTES);
    assert!(!stored(&too_large) && stored(&ids[19]), "it would take the room of all others");
}

#[test]
fn responses_belong_to_the_key_that_made_them() {
    let serve = Serve::start(&["--store-responses", "--api-key", "one", "--api-key", "two"]);
    let ask = |key: &str, method: &str, path: &str, body: &Value| {
        let key = format!("Bearer {key}");
        serve.ask(method, path, &[("Authorization", &key), ("X-Request-Id", "fixed")], body)
    };
    let request = json!({"input": "Hello", "max_output_tokens": 2});
    let ids = ["one", "two"].map(|key| {
        let reply = ask(key, "POST", "/v1/responses", &request);
        reply.body["id"].as_str().expect("an id").to_owned()
    });
    assert_ne!(ids[0], ids[1], "the id of a request does not name its response");
    let path = format!("/v1/responses/{}", ids[0]);
    let mut next = request.clone();
    next["previous_response_id"] = json!(ids[0]);
    let cancel = format!("{path}/cancel");
    for (method, path, body) in [
        ("GET", &path, &Value::Null),
        ("DELETE", &path, &Value::Null),
        ("POST", &cancel, &json!({})),
        ("POST", &"/v1/responses".to_owned(), &next),
    ] {
        assert_eq!(ask("two", method, path, body).status, 404, "{method} {path}");
    }
    assert_eq!(ask("one", "POST", "/v1/responses", &next).status, 200);
    assert_eq!(ask("one", "DELETE", &path, &Value::Null).status, 200);
}
