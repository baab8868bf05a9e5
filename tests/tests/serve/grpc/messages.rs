//! Messages of vLLM's `vllm_engine.proto`, as an independent client defines them: only the fields that these tests
//! use. Nothing here comes from the server.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct SamplingParams {
    #[prost(float, optional, tag = "1")]
    pub(super) temperature: Option<f32>,
    #[prost(uint32, optional, tag = "8")]
    pub(super) max_tokens: Option<u32>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) stop_token_ids: Vec<u32>,
    #[prost(bool, tag = "14")]
    pub(super) ignore_eos: bool,
    #[prost(uint32, tag = "15")]
    pub(super) n: u32,
    #[prost(int32, optional, tag = "22")]
    pub(super) logprobs: Option<i32>,
    #[prost(int32, optional, tag = "23")]
    pub(super) prompt_logprobs: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tokenized {
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
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Input {
    #[prost(message, tag = "2")]
    Tokenized(Tokenized),
    #[prost(string, tag = "3")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LogProbs {
    #[prost(float, repeated, tag = "1")]
    pub(super) token_logprobs: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) token_ids: Vec<u32>,
    #[prost(message, repeated, tag = "3")]
    pub(super) top_logprobs: Vec<TopLogProbs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PromptLogProbs {
    #[prost(message, repeated, tag = "1")]
    pub(super) token_logprobs: Vec<PromptLogProb>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) token_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PromptLogProb {
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
    Chunk(Chunk),
    #[prost(message, tag = "2")]
    Complete(Complete),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Chunk {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) token_ids: Vec<u32>,
    #[prost(uint32, tag = "2")]
    pub(super) prompt_tokens: u32,
    #[prost(uint32, tag = "3")]
    pub(super) completion_tokens: u32,
    #[prost(uint32, tag = "7")]
    pub(super) index: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Complete {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) output_ids: Vec<u32>,
    #[prost(string, tag = "2")]
    pub(super) finish_reason: String,
    #[prost(uint32, tag = "3")]
    pub(super) prompt_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub(super) completion_tokens: u32,
    #[prost(message, optional, tag = "6")]
    pub(super) output_logprobs: Option<LogProbs>,
    #[prost(message, optional, tag = "7")]
    pub(super) input_logprobs: Option<PromptLogProbs>,
    #[prost(uint32, tag = "8")]
    pub(super) index: u32,
    #[prost(oneof = "MatchedStop", tags = "10, 11")]
    pub(super) matched_stop: Option<MatchedStop>,
}

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
    pub(super) tokenized: Option<Tokenized>,
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
pub(super) struct AbortRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) request_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Health {
    #[prost(bool, tag = "1")]
    pub(super) healthy: bool,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelInfo {
    #[prost(bool, tag = "2")]
    pub(super) is_generation: bool,
    #[prost(uint32, tag = "3")]
    pub(super) max_context_length: u32,
    #[prost(uint32, tag = "4")]
    pub(super) vocab_size: u32,
    #[prost(string, tag = "6")]
    pub(super) served_model_name: String,
    #[prost(int32, repeated, tag = "10")]
    pub(super) eos_token_ids: Vec<i32>,
    #[prost(int32, tag = "13")]
    pub(super) max_req_input_len: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerInfo {
    #[prost(uint32, tag = "1")]
    pub(super) active_requests: u32,
    #[prost(bool, tag = "2")]
    pub(super) is_paused: bool,
    #[prost(double, tag = "3")]
    pub(super) last_receive_timestamp: f64,
    #[prost(string, tag = "5")]
    pub(super) server_type: String,
    #[prost(int32, tag = "9")]
    pub(super) data_parallel_size: i32,
    #[prost(int32, tag = "12")]
    pub(super) block_size: i32,
    #[prost(int32, tag = "20")]
    pub(super) max_num_seqs: i32,
}
