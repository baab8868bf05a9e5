//! Sampling parameters and pooling parameters.

use std::sync::Arc;

use crate::codec::error::{DecodeError, Problem};
use crate::codec::field::Wire;
use crate::codec::read::Reader;
use crate::codec::value::{Integer, Raw, Value};
use crate::codec::{array_struct, array_wire, map_struct, write};

/// The outputs that a frontend requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Each output has all tokens so far.
    Cumulative = 0,
    /// Each output has only the new tokens.
    Delta = 1,
    /// There is one output, at the end.
    FinalOnly = 2,
}

impl Wire for OutputKind {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.offset();
        match reader.integer()? {
            0 => Ok(Self::Cumulative),
            1 => Ok(Self::Delta),
            2 => Ok(Self::FinalOnly),
            found => {
                let expected = "0 (cumulative), 1 (delta) or 2 (final only)";
                Err(DecodeError::new(Problem::OutOfRange { expected, found }, at))
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::uint(out, *self as u64);
    }
}

map_struct! {
    /// When a request with repetitive output is stopped.
    RepetitionDetection, "repetition_detection" {
        /// Maximum length of a pattern, in tokens.
        always max_pattern_size: u32 = 0,
        /// Minimum length of a pattern, in tokens.
        always min_pattern_size: u32 = 0,
        /// Number of repetitions that stops the request.
        always min_count: u32 = 0,
    }
}

map_struct! {
    /// Sampling parameters. Defaults are vLLM's. vllm-rs omits nullable keys, and the Python server omits keys with
    /// default values.
    ///
    /// Only `eos_token_id`, `stop_token_ids`, `min_tokens` and the lengths affect when a request ends. The frontend
    /// itself handles `stop` and `ignore_eos`, and `all_stop_token_ids` may list tokens that do not stop the request.
    SamplingParams, "sampling_params" {
        /// Number of completions of the prompt; each arrives as a separate request.
        sparse n: u32 = 1,
        /// Penalty for tokens that occur in the output.
        sparse presence_penalty: f64 = 0.0,
        /// Penalty for tokens by their number of occurrences in the output.
        sparse frequency_penalty: f64 = 0.0,
        /// Penalty for tokens that occur in the prompt or the output.
        sparse repetition_penalty: f64 = 1.0,
        /// Temperature; 0 means greedy sampling.
        sparse temperature: f64 = 1.0,
        /// Cumulative probability of the tokens that are sampled from.
        sparse top_p: f64 = 1.0,
        /// Number of tokens that are sampled from; 0 or -1 means all.
        sparse top_k: i64 = 0,
        /// Minimum probability of a token, relative to the likeliest token's.
        sparse min_p: f64 = 0.0,
        /// Seed of the request.
        sparse seed: Option<Integer> = None,
        /// Strings at which the frontend stops the output.
        sparse stop: Option<StopStrings> = None,
        /// Tokens that stop the request.
        sparse stop_token_ids: Option<Vec<u32>> = None,
        /// Whether the end-of-text token is ignored. The frontend then omits `eos_token_id`.
        sparse ignore_eos: bool = false,
        /// Maximum number of output tokens; `None`: limited only by the model's maximum length.
        sparse max_tokens: Option<u32> = Some(16),
        /// Number of output tokens before which no token stops the request.
        sparse min_tokens: u32 = 0,
        /// Number of likeliest tokens to report for each output token; -1: the whole vocabulary.
        sparse logprobs: Option<i64> = None,
        /// Number of likeliest tokens to report for each token of the prompt; -1: the whole vocabulary.
        sparse prompt_logprobs: Option<i64> = None,
        /// Tokens whose logprobs are reported.
        sparse logprob_token_ids: Option<Vec<u32>> = None,
        /// Selects a format of the Python API.
        sparse flat_logprobs: bool = false,
        /// Used only by the frontend.
        sparse detokenize: bool = true,
        /// Used only by the frontend.
        sparse skip_special_tokens: bool = true,
        /// Used only by the frontend.
        sparse spaces_between_special_tokens: bool = true,
        /// Used only by the frontend.
        sparse include_stop_str_in_output: bool = false,
        /// The outputs that the frontend sends to the client; the engine's outputs do not depend on this.
        sparse output_kind: OutputKind = OutputKind::Cumulative,
        /// Number of tokens between two parts of a stream.
        sparse stream_interval: Option<u32> = None,
        /// Used only by the frontend.
        sparse skip_clone: bool = false,
        /// Used only by the frontend.
        sparse output_text_buffer_length: u64 = 0,
        /// The end-of-text token, unless it is ignored.
        sparse eos_token_id as "_eos_token_id": Option<u32> = None,
        /// Does not affect when a request stops: the list may have tokens that do not stop the request.
        sparse all_stop_token_ids as "_all_stop_token_ids": Vec<u32> = Vec::new(),
        /// The structure that the output must have: a map with one of `json`, `regex`, `choice`, `grammar`,
        /// `json_object` and `structural_tag`, and flags. The requests of one call share it.
        sparse structured_outputs: Option<Arc<Value>> = None,
        /// Biases that are added to the logits of tokens.
        sparse logit_bias: Option<LogitBias> = None,
        /// The only tokens that may be sampled.
        sparse allowed_token_ids: Option<Vec<u32>> = None,
        /// Parameters of connectors and plug-ins.
        sparse extra_args: Option<Value> = None,
        /// Index of the first token whose experts are reported.
        sparse routed_experts_prompt_start: u64 = 0,
        /// Words that may not be generated.
        sparse bad_words: Option<Vec<String>> = None,
        /// Tokens of `bad_words`.
        sparse bad_words_token_ids as "_bad_words_token_ids": Option<Vec<Vec<u32>>> = None,
        /// Whether the request ignores the prefix cache; `None`: the engine decides.
        sparse skip_reading_prefix_cache: Option<bool> = None,
        /// Maximum number of reasoning tokens.
        sparse thinking_token_budget: Option<i64> = None,
        /// When a request with repetitive output is stopped.
        sparse repetition_detection: Option<RepetitionDetection> = None,
        /// Tokens to output instead of sampled ones; from 0.29.
        sparse trace_decode_token_ids: Option<Raw> = None,
        /// Whether the output is watermarked; from 0.30.
        sparse watermarking: Option<bool> = Some(true),
        /// Tokens whose prompt logprobs are reported; from 0.31.
        sparse prompt_logprob_token_ids: Option<Raw> = None,
        /// Index of the first prompt token for which `prompt_logprob_token_ids` applies; from 0.31.
        sparse prompt_logprob_start: Option<u64> = None,
        /// Set by the frontend; from 0.32.
        sparse watermarking_skipped as "_watermarking_skipped": bool = false,
    }
}

impl SamplingParams {
    /// The `kv_transfer_params`, which a disaggregated deployment sets.
    #[must_use]
    pub fn kv_transfer_params(&self) -> Option<&Value> {
        let params = self.extra_args.as_ref()?.get("kv_transfer_params")?;
        (*params != Value::Nil).then_some(params)
    }
}

/// The stop strings: one text or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStrings(pub Vec<String>);

impl Wire for StopStrings {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        use rmp::Marker;
        Ok(Self(match reader.peek() {
            Some(Marker::FixArray(_) | Marker::Array16 | Marker::Array32) => Vec::read(reader)?,
            _ => vec![String::read(reader)?],
        }))
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

/// Token ids and the biases added to their logits.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitBias(pub Vec<(u32, f64)>);

impl Wire for LogitBias {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = reader.map()?;
        let mut pairs = Vec::with_capacity(reader.capacity::<(u32, f64)>(len));
        for _ in 0..len {
            let at = reader.offset();
            // JSON has no integer keys, so a frontend may send texts.
            let token = match reader.peek() {
                Some(rmp::Marker::FixStr(_) | rmp::Marker::Str8) => {
                    let found = reader.str()?;
                    found.parse().map_err(|_| {
                        let found = found.to_owned();
                        DecodeError::new(Problem::UnknownText { expected: "the token ids", found }, at)
                    })?
                }
                _ => reader.u32()?,
            };
            pairs.push((token, reader.f64()?));
        }
        Ok(Self(pairs))
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::map(out, self.0.len());
        for (token, bias) in &self.0 {
            token.write(out);
            bias.write(out);
        }
    }
}

array_struct! {
    /// Parameters of a request for an embedding, a class or a score.
    PoolingParams, 1 required {
        /// Whether an activation function is applied.
        use_activation: Option<bool> = None,
        /// Number of dimensions of the embedding.
        dimensions: Option<u32> = None,
        /// The token that marks a step.
        step_tag_id: Option<u32> = None,
        /// The tokens whose logits are returned.
        returned_token_ids: Option<Vec<u32>> = None,
        /// `embed`, `classify`, `score` or another task.
        task: Option<String> = None,
        /// Whether the pooler needs the tokens.
        requires_token_ids: bool = false,
        /// Whether the request ignores the prefix cache.
        skip_reading_prefix_cache: Option<bool> = None,
        /// Parameters of late interaction.
        late_interaction_params: Option<Raw> = None,
        /// Parameters of plug-ins.
        extra_kwargs: Option<Value> = None,
        /// The outputs that the frontend requests.
        output_kind: OutputKind = OutputKind::FinalOnly,
    }
}
array_wire!(PoolingParams, full);
