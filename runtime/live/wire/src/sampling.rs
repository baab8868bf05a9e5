//! Sampling parameters and the parameters of pooling.

use std::sync::Arc;

use crate::codec::error::{DecodeError, Problem};
use crate::codec::field::Wire;
use crate::codec::read::Reader;
use crate::codec::value::{Integer, Raw, Value};
use crate::codec::{array_struct, array_wire, map_struct, write};

/// The kind of output that a frontend wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// All tokens so far, each time.
    Cumulative = 0,
    /// New tokens only.
    Delta = 1,
    /// One output at the end.
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
    /// When a request that repeats itself is stopped.
    RepetitionDetection, "repetition_detection" {
        /// Longest pattern looked for, in tokens.
        always max_pattern_size: u32 = 0,
        /// Shortest pattern looked for, in tokens.
        always min_pattern_size: u32 = 0,
        /// Repetitions that stop the request.
        always min_count: u32 = 0,
    }
}

map_struct! {
    /// Sampling parameters. Defaults are vLLM's; vllm-rs omits nullable keys, the Python server
    /// keys with default values.
    ///
    /// Only `eos_token_id`, `stop_token_ids`, `min_tokens` and the lengths end a request. `stop`
    /// and `ignore_eos` are the frontend's own business, and `all_stop_token_ids` may list tokens
    /// that do not stop.
    SamplingParams, "sampling_params" {
        /// Completions wanted of this prompt; each arrives as its own request.
        sparse n: u32 = 1,
        /// Penalty of tokens that were generated before.
        sparse presence_penalty: f64 = 0.0,
        /// Penalty by the count of tokens generated before.
        sparse frequency_penalty: f64 = 0.0,
        /// Penalty of tokens of the prompt and the output.
        sparse repetition_penalty: f64 = 1.0,
        /// 0 is greedy.
        sparse temperature: f64 = 1.0,
        /// Share of the probability that is sampled from.
        sparse top_p: f64 = 1.0,
        /// Number of tokens that are sampled from; 0 or -1 means all.
        sparse top_k: i64 = 0,
        /// Least probability, relative to the likeliest token.
        sparse min_p: f64 = 0.0,
        /// Seed of the request.
        sparse seed: Option<Integer> = None,
        /// Strings that stop it, in the frontend.
        sparse stop: Option<StopStrings> = None,
        /// Stop tokens.
        sparse stop_token_ids: Option<Vec<u32>> = None,
        /// Already applied by the frontend: `eos_token_id` is absent then.
        sparse ignore_eos: bool = false,
        /// Tokens to generate at most; `None`: until the model's length.
        sparse max_tokens: Option<u32> = Some(16),
        /// Tokens before which nothing stops it.
        sparse min_tokens: u32 = 0,
        /// Likeliest tokens to report for each token; -1: the whole vocabulary.
        sparse logprobs: Option<i64> = None,
        /// Likeliest tokens to report for each token of the prompt; -1: the whole vocabulary.
        sparse prompt_logprobs: Option<i64> = None,
        /// Tokens whose logprobs to report.
        sparse logprob_token_ids: Option<Vec<u32>> = None,
        /// A form of the Python API.
        sparse flat_logprobs: bool = false,
        /// The frontend's.
        sparse detokenize: bool = true,
        /// The frontend's.
        sparse skip_special_tokens: bool = true,
        /// The frontend's.
        sparse spaces_between_special_tokens: bool = true,
        /// The frontend's.
        sparse include_stop_str_in_output: bool = false,
        /// Outputs that the frontend passes on; the engine sends the same for all.
        sparse output_kind: OutputKind = OutputKind::Cumulative,
        /// Tokens between two parts of a stream.
        sparse stream_interval: Option<u32> = None,
        /// The frontend's.
        sparse skip_clone: bool = false,
        /// The frontend's.
        sparse output_text_buffer_length: u64 = 0,
        /// The token that ends a text, unless it is to be ignored.
        sparse eos_token_id as "_eos_token_id": Option<u32> = None,
        /// Never to be stopped on.
        sparse all_stop_token_ids as "_all_stop_token_ids": Vec<u32> = Vec::new(),
        /// Form that the output must match: a map of one of `json`, `regex`, `choice`, `grammar`,
        /// `json_object`, `structural_tag`, and flags. The requests of one call share it.
        sparse structured_outputs: Option<Arc<Value>> = None,
        /// Numbers added to the logits of tokens.
        sparse logit_bias: Option<LogitBias> = None,
        /// Tokens that may be sampled.
        sparse allowed_token_ids: Option<Vec<u32>> = None,
        /// Parameters of connectors and plug-ins.
        sparse extra_args: Option<Value> = None,
        /// First token whose experts are reported.
        sparse routed_experts_prompt_start: u64 = 0,
        /// Words that may not be generated.
        sparse bad_words: Option<Vec<String>> = None,
        /// Their tokens.
        sparse bad_words_token_ids as "_bad_words_token_ids": Option<Vec<Vec<u32>>> = None,
        /// Whether the prefix cache is passed over; `None`: the engine decides.
        sparse skip_reading_prefix_cache: Option<bool> = None,
        /// Tokens that may be spent on thinking.
        sparse thinking_token_budget: Option<i64> = None,
        /// When a request that repeats itself is stopped.
        sparse repetition_detection: Option<RepetitionDetection> = None,
        /// Tokens to be decoded as given; from 0.29.
        sparse trace_decode_token_ids: Option<Raw> = None,
        /// Whether the output is watermarked; from 0.30.
        sparse watermarking: Option<bool> = Some(true),
        /// Tokens whose prompt logprobs to report; from 0.31.
        sparse prompt_logprob_token_ids: Option<Raw> = None,
        /// First token of the prompt with such logprobs; from 0.31.
        sparse prompt_logprob_start: Option<u64> = None,
        /// Set by the frontend; from 0.32.
        sparse watermarking_skipped as "_watermarking_skipped": bool = false,
    }
}

impl SamplingParams {
    /// KV-transfer parameters of a disaggregated deployment.
    #[must_use]
    pub fn kv_transfer_params(&self) -> Option<&Value> {
        let params = self.extra_args.as_ref()?.get("kv_transfer_params")?;
        (*params != Value::Nil).then_some(params)
    }
}

/// One text or several.
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
            // JSON has no integer keys, so a frontend may pass on texts.
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
    /// Parameters of a request that wants an embedding, a class or a score.
    PoolingParams, 1 required {
        /// Whether an activation is applied.
        use_activation: Option<bool> = None,
        /// Dimensions of the embedding.
        dimensions: Option<u32> = None,
        /// Token that marks a step.
        step_tag_id: Option<u32> = None,
        /// Tokens whose logits are returned.
        returned_token_ids: Option<Vec<u32>> = None,
        /// `embed`, `classify`, `score`, ...
        task: Option<String> = None,
        /// Whether the pooler needs the tokens.
        requires_token_ids: bool = false,
        /// Whether the prefix cache is passed over.
        skip_reading_prefix_cache: Option<bool> = None,
        /// Parameters of late interaction.
        late_interaction_params: Option<Raw> = None,
        /// Parameters of plug-ins.
        extra_kwargs: Option<Value> = None,
        /// The kind of output that the frontend wants.
        output_kind: OutputKind = OutputKind::FinalOnly,
    }
}
array_wire!(PoolingParams, full);
