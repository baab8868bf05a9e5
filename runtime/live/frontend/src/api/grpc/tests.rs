//! Compares messages byte for byte with those of Python's protocol buffers.

use std::collections::HashMap;

use axum::http::StatusCode;
use prost::Message;
use tonic::Code;

use super::calls::status;
use super::messages::*;
use crate::server::error::ApiError;

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("it is hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn assert_same<M: Message + Default + PartialEq + std::fmt::Debug>(message: M, hex: &str) {
    let bytes = bytes(hex);
    assert_eq!(M::decode(bytes.as_slice()).expect("it is a message"), message);
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
}

#[test]
fn requests_have_the_fields_of_vllm() {
    let sampling_params = SamplingParams {
        temperature: Some(0.5),
        top_p: 0.25,
        top_k: 7,
        min_p: 0.125,
        frequency_penalty: 1.0,
        presence_penalty: -1.0,
        repetition_penalty: 2.0,
        max_tokens: Some(9),
        min_tokens: 2,
        stop: vec!["a".to_owned()],
        stop_token_ids: vec![5],
        skip_special_tokens: true,
        ignore_eos: true,
        n: 2,
        constraint: Some(Constraint::Choice(ChoiceConstraint { choices: vec!["y".to_owned(), "n".to_owned()] })),
        logprobs: Some(3),
        prompt_logprobs: Some(1),
        seed: Some(-4),
        include_stop_str_in_output: true,
        logit_bias: HashMap::from([(6, 0.5)]),
        truncate_prompt_tokens: Some(-1),
    };
    let input = TokenizedInput { original_text: "x".to_owned(), input_ids: vec![1, 300] };
    let request = GenerateRequest {
        request_id: "r1".to_owned(),
        input: Some(Input::Tokenized(input)),
        sampling_params: Some(sampling_params),
        stream: true,
        kv_transfer_params_json: Some("{}".to_owned()),
        data_parallel_rank: Some(1),
    };
    let hex = "0a02723112080a0178120301ac0222640d0000003f150000803e1807250000003e2d0000803f35000080bf3d0000004040094802\
               5201615a0105600170017802aa01060a01790a016eb00103b80101c001fcffffffffffffffff01c80101d2010708061500\
               00003fd801ffffffffffffffffff01280142027b7d4801";
    // The order of fields is not fixed, and differs for `oneof`s.
    assert_eq!(GenerateRequest::decode(bytes(hex).as_slice()).expect("it is a message"), request);
    assert_eq!(GenerateRequest::decode(request.encode_to_vec().as_slice()).expect("it is a message"), request);
}

#[test]
fn answers_have_the_fields_of_vllm() {
    let own = TopLogProbs { values: vec![-0.5], token_ids: vec![8] };
    let output_logprobs = OutputLogProbs { token_logprobs: vec![-0.5], token_ids: vec![8], top_logprobs: vec![own] };
    let input_logprobs = InputLogProbs {
        token_logprobs: vec![InputTokenLogProb { value: None }, InputTokenLogProb { value: Some(-1.0) }],
        token_ids: vec![1, 2],
        top_logprobs: vec![TopLogProbs::default()],
    };
    let chunk = GenerateStreamChunk {
        token_ids: vec![8],
        prompt_tokens: 2,
        completion_tokens: 1,
        cached_tokens: 1,
        output_logprobs: Some(output_logprobs),
        input_logprobs: Some(input_logprobs),
        index: 1,
    };
    assert_same(
        GenerateResponse { response: Some(Answer::Chunk(chunk)) },
        "0a320a01081002180120012a140a04000000bf1201081a090a04000000bf120108320f0a000a050d000080bf120201021a003801",
    );
    let complete = GenerateComplete {
        output_ids: vec![8, 9],
        finish_reason: "stop".to_owned(),
        prompt_tokens: 2,
        completion_tokens: 2,
        cached_tokens: 1,
        index: 1,
        matched_stop: Some(MatchedStop::Text("a".to_owned())),
        kv_transfer_params_json: Some("{}".to_owned()),
        ..GenerateComplete::default()
    };
    assert_same(
        GenerateResponse { response: Some(Answer::Complete(complete)) },
        "12190a020809120473746f7018022002280140015a016162027b7d",
    );
    assert_same(EmbedResponse { embedding: vec![0.5], prompt_tokens: 3, embedding_dim: 1 }, "0a040000003f10031801");
}

#[test]
fn information_has_the_fields_of_vllm() {
    let model = GetModelInfoResponse {
        model_path: "m".to_owned(),
        is_generation: true,
        max_context_length: 10,
        vocab_size: 20,
        supports_vision: false,
        served_model_name: "s".to_owned(),
        tokenizer_path: "t".to_owned(),
        eos_token_ids: vec![2],
        max_req_input_len: 10,
    };
    assert_same(model, "0a016d1001180a20143201733a0174520102680a");
    let server = GetServerInfoResponse {
        active_requests: 1,
        is_paused: true,
        last_receive_timestamp: 1.5,
        uptime_seconds: 2.5,
        server_type: "vllm-grpc".to_owned(),
        data_parallel_size: 2,
        block_size: 16,
        max_num_seqs: 8,
    };
    assert_same(server, "0801100119000000000000f83f2100000000000004402a09766c6c6d2d6772706348026010a00108");
}

#[test]
fn errors_have_the_codes_of_their_statuses() {
    let of = |error: ApiError| status(&error).code();
    assert_eq!(of(ApiError::invalid("no")), Code::InvalidArgument);
    assert_eq!(of(ApiError::unknown_model("m")), Code::NotFound);
    assert_eq!(of(ApiError::unavailable("later")), Code::Unavailable);
    let teapot = ApiError { status: StatusCode::IM_A_TEAPOT, ..ApiError::internal("why") };
    assert_eq!((of(teapot.clone()), status(&teapot).message()), (Code::Internal, "why"));
}
