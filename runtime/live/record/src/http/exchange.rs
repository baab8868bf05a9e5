//! Converts an HTTP exchange to lines of a capture.

use std::sync::Arc;

use serde_json::Value;
use vcr_trace::capture::{HttpBytes, HttpEnd, HttpRecord, RequestRecord};

use super::decode::{Part, decode};
use super::generation::{Generation, params_of, prompt_of};
use super::secrets::{RedactRules, Secrets, count_keys, redact_json};
use crate::request::saturated;

/// Longer texts are not counted by the tokenizer.
const PROMPT_TEXT_BYTES_MAX: usize = 4 << 20;

/// Counts the tokens of a text.
pub type TokenCounter = Arc<dyn Fn(&str) -> u64 + Send + Sync>;

/// Called with each exchange that was written.
pub type HttpObserver = Arc<dyn Fn(&HttpRecord) + Send + Sync>;

/// A finished exchange, unchanged.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// When the request's head arrived, on the clock of [`now_ns`](super::now_ns).
    pub arrived_ns: u64,
    pub method: String,
    /// The path as sent by the client.
    pub path: String,
    /// The query string, without the `?`.
    pub query: Option<String>,
    pub request_headers: Vec<(String, String)>,
    /// The request body, up to the limit.
    pub request_body: Vec<u8>,
    /// Bytes of the request body beyond the limit.
    pub request_left_out_bytes: u64,
    /// Status code of the response.
    pub status: Option<u16>,
    /// Headers of the response.
    pub headers: Vec<(String, String)>,
    /// Time from the arrival to the response's head.
    pub head_ns: Option<u64>,
    /// Parts of the response body, up to the limit, each with the time since the arrival.
    pub chunks: Vec<(u64, Vec<u8>)>,
    /// Bytes of the response body beyond the limit.
    pub left_out_bytes: u64,
    /// Time from the arrival to the end.
    pub end_ns: u64,
    /// The outcome of the exchange.
    pub end: HttpEnd,
    /// The error message, if the exchange failed.
    pub error: Option<String>,
    /// Requests in progress at the arrival, including this one.
    pub concurrency: u32,
}

impl Exchange {
    pub(crate) fn size_bytes(&self) -> usize {
        let headers =
            self.request_headers.iter().chain(&self.headers).map(|(name, value)| name.len() + value.len() + 48);
        let chunks = self.chunks.iter().map(|(_, bytes)| bytes.len() + size_of::<Part>());
        size_of::<Self>() + self.path.len() + self.request_body.len() + headers.sum::<usize>() + chunks.sum::<usize>()
    }
}

/// Rules for recording exchanges.
#[derive(Clone, Default)]
pub(crate) struct HttpRules {
    pub(crate) redact: RedactRules,
    pub(crate) max_body_bytes: usize,
    pub(crate) count_tokens: Option<TokenCounter>,
    pub(crate) observer: Option<HttpObserver>,
}

pub(crate) struct HttpLines {
    pub(crate) http: HttpRecord,
    /// `None` if the exchange is not a generation, or the length of its prompt is unknown.
    pub(crate) request: Option<RequestRecord>,
    pub(crate) is_generation: bool,
    /// The number of strings that look like API keys.
    pub(crate) keys: u64,
    /// For each path of the redaction rules, whether the exchange has a value there.
    pub(crate) found_paths: Vec<bool>,
}

/// Converts an exchange to its HTTP line and, if it is a generation with a known prompt length, its request line.
#[must_use]
pub fn lines_of(
    exchange: &Exchange,
    redact: &RedactRules,
    max_body_bytes: usize,
) -> (HttpRecord, Option<RequestRecord>) {
    let rules = HttpRules { redact: redact.clone(), max_body_bytes, ..HttpRules::default() };
    let HttpLines { http, request, .. } = rules.lines(exchange, 0, 0);
    (http, request)
}

impl HttpRules {
    /// Converts exchange `number`, which arrived at `arrival_ns` of the capture.
    pub(crate) fn lines(&self, exchange: &Exchange, number: u64, arrival_ns: u64) -> HttpLines {
        let mut http = HttpRecord {
            id: format!("http-{number}"),
            arrival_ns,
            method: exchange.method.clone(),
            path: exchange.path.clone(),
            query: exchange.query.clone(),
            request_headers: exchange.request_headers.clone(),
            request_left_out_bytes: exchange.request_left_out_bytes,
            status: exchange.status,
            headers: exchange.headers.clone(),
            head_ns: exchange.head_ns,
            left_out_bytes: exchange.left_out_bytes,
            end_ns: exchange.end_ns,
            end: exchange.end,
            error: exchange.error.clone(),
            ..HttpRecord::default()
        };
        let encoding = http.header("content-encoding").filter(|name| *name != "identity").map(str::to_owned);
        let decoded = encoding.as_deref().and_then(|name| decode(name, &exchange.chunks, self.max_body_bytes));
        let is_plain = encoding.is_none() || decoded.is_some();
        if decoded.is_some() {
            http.decoded = encoding;
            http.headers.retain(|(name, _)| {
                !name.eq_ignore_ascii_case("content-encoding") && !name.eq_ignore_ascii_case("content-length")
            });
        }
        let parts = decoded.as_ref().unwrap_or(&exchange.chunks);
        let is_stream = http.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let answer = if is_plain { Generation::of(parts, is_stream) } else { Generation::default() };
        if http.end == HttpEnd::ClientGone && answer.has_last_event {
            // Some clients (Codex 0.171) disconnect at the last event, before the body ends.
            http.end = HttpEnd::Whole;
        }
        let asked = serde_json::from_slice(&exchange.request_body).unwrap_or(Value::Null);
        let request = self.request(exchange, &http, &answer, &asked);
        let mut body = vec![(0, exchange.request_body.clone())];
        let mut parts = parts.clone();
        let mut found_paths = vec![false; self.redact.json.len()];
        redact_json(&mut body, false, &self.redact.json, &mut found_paths);
        redact_json(&mut parts, is_stream, &self.redact.json, &mut found_paths);
        let keys = self.redact(&mut http, body, parts);
        http.tool_calls = answer.tool_calls;
        HttpLines { http, request, is_generation: answer.is_found, keys, found_paths }
    }

    /// Adds the bodies to `http` after redacting secrets. Returns the number of strings that look like API keys.
    fn redact(&self, http: &mut HttpRecord, mut body: Vec<Part>, mut parts: Vec<Part>) -> u64 {
        let mut secrets = Secrets::default();
        secrets.redact_headers(&mut http.request_headers, &self.redact);
        secrets.redact_headers(&mut http.headers, &self.redact);
        http.query = http.query.as_deref().map(|query| secrets.redact_query(query, &self.redact));
        secrets.redact_parts(&mut body);
        secrets.redact_parts(&mut parts);
        secrets.redact_text(&mut http.path);
        for text in http.query.iter_mut().chain(&mut http.error) {
            secrets.redact_text(text);
        }
        for (_, value) in http.request_headers.iter_mut().chain(&mut http.headers) {
            secrets.redact_text(value);
        }
        let mut keys =
            count_keys(http.path.as_bytes()) + http.query.as_ref().map_or(0, |query| count_keys(query.as_bytes()));
        let headers = http.request_headers.iter().chain(&http.headers);
        keys += headers.map(|(_, value)| count_keys(value.as_bytes())).sum::<u64>();
        http.request_body = HttpBytes(body.pop().map(|(_, bytes)| bytes).unwrap_or_default());
        http.chunks = parts.into_iter().map(|(at_ns, bytes)| (at_ns, HttpBytes(bytes))).collect();
        keys + count_keys(&http.request_body.0) + count_keys(&http.body())
    }

    /// Builds the request line of a generation. Returns `None` if the length of the prompt is unknown.
    fn request(
        &self,
        exchange: &Exchange,
        http: &HttpRecord,
        answer: &Generation,
        asked: &Value,
    ) -> Option<RequestRecord> {
        let has_failed = http.status.is_none_or(|status| status >= 400) || http.end == HttpEnd::ServerLost;
        let params = params_of(asked);
        if exchange.method != "POST" || !(answer.is_found || has_failed && !params.is_empty()) {
            return None;
        }
        let count = |text: &str| {
            let counted = self.count_tokens.as_ref().filter(|_| text.len() <= PROMPT_TEXT_BYTES_MAX);
            counted.map(|count| count(text)).filter(|tokens| *tokens > 0)
        };
        let prompt_tokens = answer.prompt_tokens.or_else(|| {
            let (text, ids) = prompt_of(asked);
            if ids > 0 && text.is_empty() { Some(ids) } else { count(&text).map(|tokens| tokens + ids) }
        });
        let prompt_tokens = saturated(prompt_tokens?);
        let events: u64 = answer.outputs.iter().map(|(_, events)| events).sum();
        let output_tokens = answer.output_tokens.or_else(|| count(&answer.text)).unwrap_or(events);
        let output_tokens = output_tokens.min(u32::MAX.into());
        let outputs = answer.tokens_by_output(output_tokens);
        let gaps = outputs.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].0));
        let gap_tokens: Vec<u32> = outputs.iter().skip(1).map(|(_, tokens)| *tokens).collect();
        let error = answer.error.clone().or_else(|| exchange.error.clone());
        let finish_reason = match http.end {
            HttpEnd::ClientGone => "abort",
            _ if has_failed || answer.error.is_some() => "error",
            _ => answer.finish_reason.unwrap_or("stop"),
        };
        Some(RequestRecord {
            id: Some(http.id.clone()),
            external_id: http.request_header("x-request-id").map(str::to_owned),
            session: http.request_header("x-session-id").map(str::to_owned),
            arrival_ns: Some(http.arrival_ns),
            concurrency: Some(exchange.concurrency),
            prompt_tokens,
            cached_tokens: saturated(answer.cached_tokens).min(prompt_tokens),
            output_tokens: saturated(output_tokens),
            ttft_ns: outputs.first().map(|(at_ns, _)| *at_ns),
            first_tokens: outputs.first().map(|(_, tokens)| *tokens).filter(|tokens| *tokens != 1),
            gap_ns: gaps.collect(),
            gap_tokens: gap_tokens.iter().any(|tokens| *tokens != 1).then_some(gap_tokens),
            finish_reason: Some(finish_reason.to_owned()),
            end_ns: Some(exchange.end_ns),
            params,
            error: error.filter(|_| finish_reason == "error"),
            ..RequestRecord::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vcr_trace::capture::{CAPTURE_FORMAT, CAPTURE_VERSION, CaptureLine, CaptureMeta, CaptureReader, ReadOptions};

    use super::*;

    fn exchange(body: &str, kind: &str, parts: &[(u64, &str)]) -> Exchange {
        Exchange {
            method: "POST".to_owned(),
            path: "/v1/chat/completions".to_owned(),
            request_headers: vec![("authorization".to_owned(), "Bearer abcdefgh-secret".to_owned())],
            request_body: body.as_bytes().to_vec(),
            status: Some(200),
            headers: vec![("content-type".to_owned(), kind.to_owned())],
            chunks: parts.iter().map(|(at_ns, text)| (*at_ns, text.as_bytes().to_vec())).collect(),
            end_ns: 90,
            concurrency: 1,
            ..Exchange::default()
        }
    }

    #[test]
    fn a_stream_gives_both_lines() {
        let parts = [
            (10, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
            (25, "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}\n\n"),
            (26, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n"),
        ];
        let asked = r#"{"messages":[{"content":"abcdefgh-secret"}],"max_tokens":2}"#;
        let lines = HttpRules::default().lines(&exchange(asked, "text/event-stream; charset=utf-8", &parts), 4, 1000);
        let request = lines.request.expect("it has usage");
        assert_eq!((request.prompt_tokens, request.output_tokens, request.ttft_ns), (9, 2, Some(10)));
        assert_eq!((request.gap_ns, request.gap_tokens, request.end_ns), (vec![15], None, Some(90)));
        assert_eq!((request.finish_reason.as_deref(), request.arrival_ns), (Some("length"), Some(1000)));
        assert_eq!(request.id.as_deref(), Some("http-4"));
        let text = serde_json::to_string(&lines.http).expect("it is JSON");
        assert!(!text.contains("abcdefgh-secret"), "{text}");
        let times: Vec<u64> = lines.http.chunks.iter().map(|(at_ns, _)| *at_ns).collect();
        assert_eq!((times, lines.is_generation), (vec![10, 25, 26], true));
    }

    #[test]
    fn an_answer_is_whole_if_its_client_left_at_the_last_event() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";
        let response = "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\
            \"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
        let message = "data: {\"type\":\"message_stop\"}\n\n";
        let cases = [
            (vec![text, usage], HttpEnd::ClientGone, "abort"),
            (vec![text, usage, "data: [DONE]\n\n"], HttpEnd::Whole, "stop"),
            (vec![text, response], HttpEnd::Whole, "stop"),
            (vec![text, usage, message], HttpEnd::Whole, "stop"),
            (vec![text, usage, message, text], HttpEnd::ClientGone, "abort"),
        ];
        for (events, end, reason) in cases {
            let parts: Vec<(u64, &str)> = (1..).zip(events.iter().copied()).collect();
            let exchange = Exchange { end: HttpEnd::ClientGone, ..exchange("{}", "text/event-stream", &parts) };
            let lines = HttpRules::default().lines(&exchange, 0, 0);
            let request = lines.request.expect("it has usage");
            assert_eq!((lines.http.end, request.finish_reason.as_deref()), (end, Some(reason)), "{events:?}");
        }
    }

    #[test]
    fn without_usage_a_tokenizer_counts() {
        let parts = [(10, r#"{"choices":[{"message":{"content":"one two"},"finish_reason":"stop"}]}"#)];
        let asked = r#"{"messages":[{"role":"user","content":"a b c"}]}"#;
        let exchange = exchange(asked, "application/json", &parts);
        let lines = HttpRules::default().lines(&exchange, 0, 0);
        assert!(lines.request.is_none() && lines.is_generation);
        let count: TokenCounter = Arc::new(|text| text.split_whitespace().count() as u64);
        let rules = HttpRules { count_tokens: Some(count), ..HttpRules::default() };
        let request = rules.lines(&exchange, 0, 0).request.expect("it is counted");
        assert_eq!((request.prompt_tokens, request.output_tokens, request.ttft_ns), (3, 2, None));
    }

    #[test]
    fn failures_and_other_exchanges() {
        let mut failed = exchange(
            r#"{"prompt":[1,2],"max_tokens":3}"#,
            "application/json",
            &[(5, r#"{"error":{"message":"busy"}}"#)],
        );
        failed.status = Some(503);
        let request = HttpRules::default().lines(&failed, 0, 0).request.expect("ids have a length");
        assert_eq!((request.prompt_tokens, request.finish_reason.as_deref()), (2, Some("error")));
        assert_eq!(request.error.as_deref(), Some("busy"));
        let models =
            Exchange { method: "GET".to_owned(), ..exchange("", "application/json", &[(5, r#"{"data":[]}"#)]) };
        let lines = HttpRules::default().lines(&models, 0, 0);
        assert!(lines.request.is_none() && !lines.is_generation);
    }

    /// Bodies like those of real servers, and some with huge numbers.
    fn arb_body() -> impl Strategy<Value = String> {
        let number = prop_oneof![0..5_u64, Just(u64::from(u32::MAX)), any::<u64>()];
        let value =
            (number.clone(), number, "[a-z]{0,3}", 0..6_u32).prop_map(|(prompt, output, text, kind)| match kind {
                0 => format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#),
                1 => format!(r#"{{"choices":[{{"text":"{text}","finish_reason":"{text}"}}]}}"#),
                2 => format!(r#"{{"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output}}}}}"#),
                3 => format!(
                    r#"{{"type":"message_delta","delta":{{"stop_reason":"x"}},"usage":{{"input_tokens":{prompt},
                "cache_read_input_tokens":{output},"output_tokens":{output}}}}}"#
                ),
                4 => format!(r#"{{"type":"response.output_text.delta","delta":"{text}"}}"#),
                _ => text,
            });
        (proptest::collection::vec(value, 0..6), any::<bool>()).prop_map(|(values, is_stream)| match is_stream {
            true => values.iter().map(|value| format!("data: {value}\n\n")).collect(),
            false => values.concat(),
        })
    }

    proptest! {
        /// Any response can be converted to capture lines.
        #[test]
        fn lines_of_any_exchange_can_be_read(
            bodies in (arb_body(), arb_body()),
            cuts in proptest::collection::vec(1..40_usize, 1..6),
            head in (any::<bool>(), proptest::option::of(100..600_u16), 0..3_u32),
        ) {
            let (asked, answered) = bodies;
            let mut parts = Vec::new();
            let mut rest = answered.as_bytes();
            for (cut, at_ns) in cuts.into_iter().zip(1..) {
                let (part, behind) = rest.split_at(cut.min(rest.len()));
                parts.push((at_ns, part.to_vec()));
                rest = behind;
            }
            parts.push((9, rest.to_vec()));
            let kind = if head.0 { "text/event-stream" } else { "application/json" };
            let end = [HttpEnd::Whole, HttpEnd::ClientGone, HttpEnd::ServerLost][head.2 as usize];
            let exchange = Exchange { status: head.1, chunks: parts, end, ..exchange(&asked, kind, &[]) };
            let (http, request) = lines_of(&exchange, &RedactRules::default(), 1000);
            prop_assert_eq!(http.body(), answered.as_bytes());
            let meta = CaptureLine::Meta(Box::new(CaptureMeta {
                format: CAPTURE_FORMAT.to_owned(),
                version: CAPTURE_VERSION,
                ..CaptureMeta::default()
            }));
            let lines = [Some(meta), Some(CaptureLine::Http(Box::new(http))), request.map(|r| CaptureLine::Request(Box::new(r)))];
            let text: Vec<String> =
                lines.into_iter().flatten().map(|line| serde_json::to_string(&line).expect("it is JSON") + "\n").collect();
            let text = text.concat();
            let mut reader = CaptureReader::from_reader(text.as_bytes(), "written", &ReadOptions::default()).expect("a capture");
            while reader.next_line().expect("a line").is_some() {}
        }
    }
}
