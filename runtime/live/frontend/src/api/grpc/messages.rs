//! Messages of `vllm.grpc.engine.VllmEngine`. They contain the fields of `vllm_engine.proto` that affect a
//! simulated engine; protocol buffers skip other fields.

use std::collections::HashMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct SamplingParams {
    #[prost(float, optional, tag = "1")]
    pub(super) temperature: Option<f32>,
    #[prost(float, tag = "2")]
    pub(super) top_p: f32,
    #[prost(uint32, tag = "3")]
    pub(super) top_k: u32,
    #[prost(float, tag = "4")]
    pub(super) min_p: f32,
    #[prost(float, tag = "5")]
    pub(super) frequency_penalty: f32,
    #[prost(float, tag = "6")]
    pub(super) presence_penalty: f32,
    #[prost(float, tag = "7")]
    pub(super) repetition_penalty: f32,
    #[prost(uint32, optional, tag = "8")]
    pub(super) max_tokens: Option<u32>,
    #[prost(uint32, tag = "9")]
    pub(super) min_tokens: u32,
    #[prost(string, repeated, tag = "10")]
    pub(super) stop: Vec<String>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) stop_token_ids: Vec<u32>,
    #[prost(bool, tag = "12")]
    pub(super) skip_special_tokens: bool,
    #[prost(bool, tag = "14")]
    pub(super) ignore_eos: bool,
    #[prost(uint32, tag = "15")]
    pub(super) n: u32,
    #[prost(oneof = "Constraint", tags = "16, 17, 18, 19, 20, 21")]
    pub(super) constraint: Option<Constraint>,
    #[prost(int32, optional, tag = "22")]
    pub(super) logprobs: Option<i32>,
    #[prost(int32, optional, tag = "23")]
    pub(super) prompt_logprobs: Option<i32>,
    #[prost(int32, optional, tag = "24")]
    pub(super) seed: Option<i32>,
    #[prost(bool, tag = "25")]
    pub(super) include_stop_str_in_output: bool,
    #[prost(map = "int32, float", tag = "26")]
    pub(super) logit_bias: HashMap<i32, f32>,
    #[prost(int32, optional, tag = "27")]
    pub(super) truncate_prompt_tokens: Option<i32>,
}

/// The constraint of a structured output.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Constraint {
    #[prost(string, tag = "16")]
    JsonSchema(String),
    #[prost(string, tag = "17")]
    Regex(String),
    #[prost(string, tag = "18")]
    Grammar(String),
    #[prost(string, tag = "19")]
    StructuralTag(String),
    #[prost(bool, tag = "20")]
    JsonObject(bool),
    #[prost(message, tag = "21")]
    Choice(ChoiceConstraint),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ChoiceConstraint {
    #[prost(string, repeated, tag = "1")]
    pub(super) choices: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TokenizedInput {
    #[prost(string, tag = "1")]
    pub(super) original_text: String,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) input_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenerateRequest {
    #[prost(string, tag = "1")]
    pub(super) request_id: String,
    #[prost(oneof = "Input", tags = "2, 3")]
    pub(super) input: Option<Input>,
    #[prost(message, optional, tag = "4")]
    pub(super) sampling_params: Option<SamplingParams>,
    #[prost(bool, tag = "5")]
    pub(super) stream: bool,
    #[prost(string, optional, tag = "8")]
    pub(super) kv_transfer_params_json: Option<String>,
    #[prost(int32, optional, tag = "9")]
    pub(super) data_parallel_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Input {
    #[prost(message, tag = "2")]
    Tokenized(TokenizedInput),
    #[prost(string, tag = "3")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OutputLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub(super) token_logprobs: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) token_ids: Vec<u32>,
    #[prost(message, repeated, tag = "3")]
    pub(super) top_logprobs: Vec<TopLogProbs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InputLogProbs {
    #[prost(message, repeated, tag = "1")]
    pub(super) token_logprobs: Vec<InputTokenLogProb>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) token_ids: Vec<u32>,
    #[prost(message, repeated, tag = "3")]
    pub(super) top_logprobs: Vec<TopLogProbs>,
}

/// The first token of a prompt has no value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InputTokenLogProb {
    #[prost(float, optional, tag = "1")]
    pub(super) value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TopLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub(super) values: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) token_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenerateResponse {
    #[prost(oneof = "Answer", tags = "1, 2")]
    pub(super) response: Option<Answer>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Answer {
    #[prost(message, tag = "1")]
    Chunk(GenerateStreamChunk),
    #[prost(message, tag = "2")]
    Complete(GenerateComplete),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenerateStreamChunk {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) token_ids: Vec<u32>,
    #[prost(uint32, tag = "2")]
    pub(super) prompt_tokens: u32,
    #[prost(uint32, tag = "3")]
    pub(super) completion_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub(super) cached_tokens: u32,
    #[prost(message, optional, tag = "5")]
    pub(super) output_logprobs: Option<OutputLogProbs>,
    #[prost(message, optional, tag = "6")]
    pub(super) input_logprobs: Option<InputLogProbs>,
    #[prost(uint32, tag = "7")]
    pub(super) index: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenerateComplete {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) output_ids: Vec<u32>,
    #[prost(string, tag = "2")]
    pub(super) finish_reason: String,
    #[prost(uint32, tag = "3")]
    pub(super) prompt_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub(super) completion_tokens: u32,
    #[prost(uint32, tag = "5")]
    pub(super) cached_tokens: u32,
    #[prost(message, optional, tag = "6")]
    pub(super) output_logprobs: Option<OutputLogProbs>,
    #[prost(message, optional, tag = "7")]
    pub(super) input_logprobs: Option<InputLogProbs>,
    #[prost(uint32, tag = "8")]
    pub(super) index: u32,
    #[prost(oneof = "MatchedStop", tags = "10, 11")]
    pub(super) matched_stop: Option<MatchedStop>,
    #[prost(string, optional, tag = "12")]
    pub(super) kv_transfer_params_json: Option<String>,
}

/// The stop string or token that ended an output.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum MatchedStop {
    #[prost(uint32, tag = "10")]
    Token(u32),
    #[prost(string, tag = "11")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EmbedRequest {
    #[prost(string, tag = "1")]
    pub(super) request_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) tokenized: Option<TokenizedInput>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EmbedResponse {
    #[prost(float, repeated, tag = "1")]
    pub(super) embedding: Vec<f32>,
    #[prost(uint32, tag = "2")]
    pub(super) prompt_tokens: u32,
    #[prost(uint32, tag = "3")]
    pub(super) embedding_dim: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckResponse {
    #[prost(bool, tag = "1")]
    pub(super) healthy: bool,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AbortRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) request_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetModelInfoResponse {
    #[prost(string, tag = "1")]
    pub(super) model_path: String,
    #[prost(bool, tag = "2")]
    pub(super) is_generation: bool,
    #[prost(uint32, tag = "3")]
    pub(super) max_context_length: u32,
    #[prost(uint32, tag = "4")]
    pub(super) vocab_size: u32,
    #[prost(bool, tag = "5")]
    pub(super) supports_vision: bool,
    #[prost(string, tag = "6")]
    pub(super) served_model_name: String,
    #[prost(string, tag = "7")]
    pub(super) tokenizer_path: String,
    #[prost(int32, repeated, tag = "10")]
    pub(super) eos_token_ids: Vec<i32>,
    #[prost(int32, tag = "13")]
    pub(super) max_req_input_len: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GetServerInfoResponse {
    #[prost(uint32, tag = "1")]
    pub(super) active_requests: u32,
    #[prost(bool, tag = "2")]
    pub(super) is_paused: bool,
    #[prost(double, tag = "3")]
    pub(super) last_receive_timestamp: f64,
    #[prost(double, tag = "4")]
    pub(super) uptime_seconds: f64,
    #[prost(string, tag = "5")]
    pub(super) server_type: String,
    #[prost(int32, tag = "9")]
    pub(super) data_parallel_size: i32,
    #[prost(int32, tag = "12")]
    pub(super) block_size: i32,
    #[prost(int32, tag = "20")]
    pub(super) max_num_seqs: i32,
}
