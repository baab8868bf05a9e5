//! Ids and texts of exchanges over HTTP, which a capture writes before the line of their request.

use std::collections::BTreeMap;
use std::hash::Hasher;

use fnv::FnvHasher;
use serde_json::Value;
use vcr_trace::capture::{HttpRecord, RequestRecord};
use vcr_trace::import::OUTPUT_TEXT;

use super::responses::Piece;
use super::stream::{DONE, Stream};

/// The exchanges of a capture so far.
#[derive(Default)]
pub(super) struct Exchanges {
    /// How often each request came, by the hash of its path and body.
    seen: BTreeMap<u64, u32>,
    latest: Option<Exchange>,
}

struct Exchange {
    /// Its id in the capture.
    id: String,
    /// The same in every capture of the same requests.
    request_id: String,
    text: Option<String>,
}

impl Exchanges {
    pub(super) fn add(&mut self, http: &HttpRecord) {
        let mut hasher = FnvHasher::default();
        hasher.write(http.path.as_bytes());
        hasher.write(&http.request_body.0);
        let hash = hasher.finish();
        let count = self.seen.entry(hash).or_default();
        *count += 1;
        let request_id = format!("{hash:016x} {count}");
        self.latest = Some(Exchange { id: http.id.clone(), request_id, text: text_of(http) });
    }

    /// Completes the request line of the latest exchange. Without an id of the client, requests are identified by their
    /// contents: the recorder numbers exchanges, and two servers get them in different orders.
    pub(super) fn complete(&mut self, record: &mut RequestRecord) {
        let Some(exchange) = self.latest.take().filter(|exchange| record.id.as_ref() == Some(&exchange.id)) else {
            return;
        };
        record.external_id.get_or_insert(exchange.request_id);
        if let Some(text) = exchange.text {
            record.other.entry(OUTPUT_TEXT).or_insert(Value::String(text));
        }
    }
}

/// The text of an answer: of its first choice, or of all its parts.
fn text_of(http: &HttpRecord) -> Option<String> {
    let body = http.body();
    let body = std::str::from_utf8(&body).ok()?;
    let is_stream = http.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    if !is_stream {
        return whole_text(&serde_json::from_str(body).ok()?);
    }
    let mut stream = Stream::new(0);
    let events = body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    for event in events.take_while(|event| *event != DONE) {
        let event = serde_json::from_str(event).ok()?;
        stream.add_event(None, &event).ok()?;
    }
    stream.into_text()
}

fn whole_text(answer: &Value) -> Option<String> {
    if let Some(choice) = answer.get("choices").and_then(|choices| choices.get(0)) {
        return Piece::of_choice(choice).ok()?.text;
    }
    let items = answer.get("output").and_then(Value::as_array);
    let contents = match items {
        Some(items) => items.iter().filter_map(|item| item.get("content")).collect(),
        None => vec![answer.get("content")?],
    };
    let parts = contents.into_iter().filter_map(Value::as_array).flatten();
    Some(parts.filter_map(|part| part.get("text").and_then(Value::as_str)).collect())
}

#[cfg(test)]
mod tests {
    use vcr_trace::capture::HttpBytes;

    use super::*;

    fn http(kind: &str, body: &str) -> HttpRecord {
        HttpRecord {
            id: "http-3".to_owned(),
            path: "/v1/x".to_owned(),
            request_body: HttpBytes(b"{}".to_vec()),
            headers: vec![("content-type".to_owned(), kind.to_owned())],
            chunks: vec![(1, HttpBytes(body.as_bytes().to_vec()))],
            ..HttpRecord::default()
        }
    }

    #[test]
    fn texts_of_every_api_are_found() {
        let json = "application/json";
        let stream = "text/event-stream; charset=utf-8";
        let cases = [
            (json, r#"{"choices":[{"message":{"content":"ab"}}]}"#),
            (json, r#"{"choices":[{"text":"ab"}]}"#),
            (json, r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#),
            (json, r#"{"output":[{"type":"reasoning"},{"content":[{"text":"ab"}]}]}"#),
            (
                stream,
                "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n\n",
            ),
            (stream, "event: x\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"ab\"}}\n\n"),
            (stream, "data: {\"type\":\"response.output_text.delta\",\"delta\":\"ab\"}\n\n"),
        ];
        for (kind, body) in cases {
            assert_eq!(text_of(&http(kind, body)).as_deref(), Some("ab"), "{body}");
        }
        for body in ["", "{}", "data: x"] {
            assert_eq!(text_of(&http(json, body)), None, "{body}");
        }
    }

    #[test]
    fn requests_are_identified_by_their_contents() {
        let exchange = http("application/json", r#"{"choices":[{"text":"ab"}]}"#);
        let mut exchanges = Exchanges::default();
        let mut line = || {
            exchanges.add(&exchange);
            let mut record = RequestRecord { id: Some("http-3".to_owned()), ..RequestRecord::default() };
            exchanges.complete(&mut record);
            record
        };
        let (first, second) = (line(), line());
        let [first_id, second_id] = [&first, &second].map(|record| record.external_id.clone().expect("an id"));
        assert!(first_id.ends_with(" 1") && second_id == first_id.replace(" 1", " 2"), "{first_id}, {second_id}");
        assert_eq!(first.other[OUTPUT_TEXT], "ab");
        let mut other = RequestRecord { id: Some("http-4".to_owned()), ..RequestRecord::default() };
        exchanges.add(&exchange);
        exchanges.complete(&mut other);
        assert_eq!(other.external_id, None, "it is another exchange's");
    }
}
