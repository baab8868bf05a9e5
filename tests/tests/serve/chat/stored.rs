//! Responses that the server keeps.

use serde_json::{Value, json};
use vcr_tests::Serve;

#[test]
fn a_response_is_continued_fetched_and_deleted() {
    let serve = Serve::start(&[]);
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
    // The prompt has the first question and its answer, too.
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
