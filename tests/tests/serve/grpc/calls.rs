//! Every call of the service, by a client on tonic.

use serde_json::json;
use tonic::{Code, Status};
use vcr_tests::{Serve, wait_until};

use super::client::Client;
use super::messages::*;

const PROMPT_TOKENS: u32 = 40;

fn prompt() -> Tokenized {
    Tokenized { input_ids: (0..PROMPT_TOKENS).collect(), ..Tokenized::default() }
}

/// A request that always has the same output, as long as `max_tokens` allows.
fn request(max_tokens: u32) -> GenerateRequest {
    let params = SamplingParams {
        temperature: Some(0.0),
        ignore_eos: true,
        max_tokens: Some(max_tokens),
        ..SamplingParams::default()
    };
    GenerateRequest {
        input: Some(Input::Tokenized(prompt())),
        sampling_params: Some(params),
        ..GenerateRequest::default()
    }
}

fn with_params(request: GenerateRequest, change: impl FnOnce(&mut SamplingParams)) -> GenerateRequest {
    let mut params = request.sampling_params.unwrap_or_default();
    change(&mut params);
    GenerateRequest { sampling_params: Some(params), ..request }
}

fn server_info(client: &Client) -> ServerInfo {
    client.call("GetServerInfo", Nothing {}).expect("it is answered")
}

#[test]
fn model_server_and_health_are_told() {
    let serve = Serve::start(&[
        "--served-model-name",
        "first",
        "second",
        "--max-model-len",
        "4096",
        "--block-size",
        "32",
        "--max-num-seqs",
        "7",
        "--data-parallel-size",
        "2",
    ]);
    let client = Client::new(&serve);
    let health: Health = client.call("HealthCheck", Nothing {}).expect("it is answered");
    assert_eq!(health, Health { healthy: true, message: "Health".to_owned() });

    let model: ModelInfo = client.call("GetModelInfo", Nothing {}).expect("it is answered");
    assert_eq!((model.served_model_name.as_str(), model.is_generation), ("first", true));
    assert_eq!((model.max_context_length, model.max_req_input_len), (4096, 4096));
    let eos = model.eos_token_ids.first().and_then(|token| u32::try_from(*token).ok());
    assert!(eos.is_some_and(|token| token < model.vocab_size), "{model:?}");

    let before = server_info(&client);
    assert_eq!((before.active_requests, before.is_paused, before.server_type.as_str()), (0, false, "vllm-grpc"));
    assert_eq!((before.data_parallel_size, before.block_size, before.max_num_seqs), (2, 32, 7));
    assert_eq!(before.last_receive_timestamp, 0.0, "nothing has come");
    client.generated(request(1)).expect("it is answered");
    assert!(server_info(&client).last_receive_timestamp > 0.0);
}

#[test]
fn pieces_of_a_stream_are_the_whole_answer() {
    let serve = Serve::start(&["--inter-token-latency", "2ms", "--seed", "1"]);
    let client = Client::new(&serve);
    let (none, whole) = client.generated(request(6)).expect("it is answered");
    let [whole] = &whole[..] else { panic!("{whole:?}") };
    assert!(none.is_empty(), "only streams have pieces");
    assert_eq!((whole.finish_reason.as_str(), whole.output_ids.len()), ("length", 6));
    assert_eq!((whole.prompt_tokens, whole.completion_tokens, whole.index), (PROMPT_TOKENS, 6, 0));
    assert_eq!((&whole.matched_stop, &whole.output_logprobs, &whole.input_logprobs), (&None, &None, &None));

    let streamed = GenerateRequest { stream: true, ..request(6) };
    let (chunks, ends) = client.generated(streamed).expect("it is answered");
    let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.token_ids.iter().copied()).collect();
    assert_eq!((&tokens, ends.len()), (&whole.output_ids, 1));
    assert_eq!((ends[0].finish_reason.as_str(), chunks[0].prompt_tokens), ("length", PROMPT_TOKENS));
    assert!(chunks.iter().all(|chunk| chunk.completion_tokens as usize == chunk.token_ids.len() && chunk.index == 0));

    // The tokens equal those over HTTP.
    let sampling = json!({"max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let tokens: Vec<u32> = (0..PROMPT_TOKENS).collect();
    let same = serve.post("/inference/v1/generate", &json!({"token_ids": tokens, "sampling_params": sampling}));
    assert_eq!(same.body["choices"][0]["token_ids"], json!(whole.output_ids));
}

#[test]
fn stops_logprobs_and_several_completions_are_answered() {
    let serve = Serve::start(&["--seed", "1"]);
    let client = Client::new(&serve);
    let one = |request: GenerateRequest| {
        let (_, mut ends) = client.generated(request).expect("it is answered");
        assert_eq!(ends.len(), 1);
        ends.remove(0)
    };
    let all = one(request(6)).output_ids;
    let last = *all.last().expect("there are six");
    let first = all.iter().position(|token| *token == last).expect("it is there");
    let stopped = one(with_params(request(6), |params| params.stop_token_ids = vec![last]));
    assert_eq!((stopped.finish_reason.as_str(), &stopped.matched_stop), ("stop", &Some(MatchedStop::Token(last))));
    assert_eq!(stopped.output_ids, all[..=first]);

    let with_logprobs = one(with_params(request(6), |params| {
        (params.logprobs, params.prompt_logprobs) = (Some(2), Some(0));
    }));
    let logprobs = with_logprobs.output_logprobs.expect("they were asked for");
    assert_eq!((&logprobs.token_ids, logprobs.token_logprobs.len()), (&all, 6));
    assert!(logprobs.token_logprobs.iter().all(|logprob| *logprob <= 0.0));
    assert!(logprobs.top_logprobs.iter().all(|top| (top.values.len(), top.token_ids.len()) == (2, 2)));
    let of_prompt = with_logprobs.input_logprobs.expect("they were asked for");
    assert_eq!(of_prompt.token_ids, prompt().input_ids);
    let known: Vec<bool> = of_prompt.token_logprobs.iter().map(|logprob| logprob.value.is_some()).collect();
    assert!(!known[0] && known[1..].iter().all(|is_known| *is_known), "nothing comes before the first token");

    let text = GenerateRequest { input: Some(Input::Text("Say it twice.".to_owned())), ..request(3) };
    // Greedy sampling allows only one answer.
    let twice = with_params(text, |params| (params.n, params.temperature) = (2, Some(1.0)));
    let (_, mut several) = client.generated(twice).expect("it is answered");
    several.sort_by_key(|end| end.index);
    let ends: Vec<_> = several.iter().map(|end| (end.index, end.output_ids.len())).collect();
    assert_eq!(ends, [(0, 3), (1, 3)]);
}

#[test]
fn a_vector_is_that_of_http() {
    let serve = Serve::start(&["--embedding-dimensions", "12"]);
    let client = Client::new(&serve);
    let asked = EmbedRequest { request_id: "vector".to_owned(), tokenized: Some(prompt()) };
    let answer: EmbedResponse = client.call("Embed", asked).expect("it is answered");
    assert_eq!((answer.embedding_dim, answer.prompt_tokens, answer.embedding.len()), (12, PROMPT_TOKENS, 12));
    let same = serve.post("/v1/embeddings", &json!({"input": prompt().input_ids})).body;
    let numbers = same["data"][0]["embedding"].as_array().expect("a vector").iter();
    let numbers: Vec<f32> = numbers.map(|number| number.as_f64().expect("a number") as f32).collect();
    assert_eq!(numbers, answer.embedding);
}

/// Aborted and cancelled requests end in the engine, which would otherwise continue for a long time.
#[test]
fn requests_end_when_they_are_aborted_or_cancelled() {
    let serve = Serve::start(&["--inter-token-latency", "20ms", "--log-requests"]);
    let client = Client::new(&serve);
    let named = |id: &str| GenerateRequest { request_id: id.to_owned(), stream: true, ..request(100_000) };
    let begun = |id: &str| {
        let mut answers = client.generate(named(id)).expect("it is accepted");
        assert!(matches!(answers.next(), Ok(Some(Answer::Chunk(_)))), "the answer begins");
        answers
    };
    // Several calls share one connection.
    let (mut aborted, mut other) = (begun("one"), begun("other"));
    assert_eq!(server_info(&client).active_requests, 2);
    let ids = ["unknown", "one"].map(str::to_owned).to_vec();
    let _: Nothing = client.call("Abort", AbortRequest { request_ids: ids }).expect("it is answered");
    let end = loop {
        match aborted.next().expect("an abort is not an error").expect("its end comes first") {
            Answer::Chunk(_) => {}
            Answer::Complete(complete) => break complete,
        }
    };
    assert_eq!((end.finish_reason.as_str(), end.prompt_tokens), ("abort", PROMPT_TOKENS));
    assert_eq!(aborted.next().expect("the call has ended well"), None);
    assert!(matches!(other.next(), Ok(Some(Answer::Chunk(_)))), "another request goes on");

    drop(other);
    wait_until("the cancelled request ends", || server_info(&client).active_requests == 0);
    wait_until("both end in the engine", || serve.log().matches("reason=Abort").count() == 2);
}

#[test]
fn what_is_wrong_has_a_code_and_a_text() {
    let serve = Serve::start(&["--max-model-len", "64"]);
    let client = Client::new(&serve);
    let refused = |request: GenerateRequest| -> Status {
        let answers = client.generated(request).expect_err("it is refused");
        assert_eq!(answers.code(), Code::InvalidArgument, "{answers:?}");
        answers
    };
    let empty = refused(GenerateRequest { input: None, ..request(1) });
    assert_eq!(empty.message(), "invalid input: expected `tokenized` or `text`");
    let long = Tokenized { input_ids: vec![1; 65], ..Tokenized::default() };
    let too_long = refused(GenerateRequest { input: Some(Input::Tokenized(long.clone())), ..request(1) });
    assert!(too_long.message().contains("maximum context length is 64 tokens"), "{too_long:?}");
    let many = refused(with_params(request(1), |params| params.n = 1000));
    assert!(many.message().starts_with("invalid n: expected 1 to "), "{many:?}");

    let embed = |tokenized| {
        let request = EmbedRequest { tokenized, ..EmbedRequest::default() };
        client.call::<_, EmbedResponse>("Embed", request).expect_err("it is refused")
    };
    assert_eq!(embed(None).message(), "invalid tokenized: expected at least one token");
    assert_eq!((embed(Some(long)).code(), embed(None).code()), (Code::InvalidArgument, Code::InvalidArgument));

    let unknown = client.call::<_, Nothing>("GetLoads", Nothing {}).expect_err("there is no such call");
    assert_eq!((unknown.code(), unknown.message()), (Code::Unimplemented, "unknown method `GetLoads`"));
    // An invalid message: it has text where a number of tokens is expected.
    let broken = Health { healthy: true, message: "\u{1}".to_owned() };
    let status = client.call::<_, Nothing>("Generate", broken).expect_err("it is not a request");
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    // The connection still works.
    assert!(client.generated(request(1)).is_ok());
}
