//! The request bodies of vLLM's Python API server, with fields in their order there.

use super::kinds::Kind::{
    Any, Bool, Dataclass, Dict, Float, Instance, Int, Int64, IntFrom, IntOrNull, Iterable, List, ListOf, Model, OneOf,
    Optional, Text, Typed, Union,
};
use super::kinds::{Field, Kind, optional, required};

const INT_OR_NONE: Kind = Optional(&Int);
const BOOL_OR_NONE: Kind = Optional(&Bool);
const FLOAT_OR_NONE: Kind = Optional(&Float);
const TEXT_OR_NONE: Kind = Optional(&Text);
const INTS: Kind = Optional(&List(&Int));
const OBJECT: Kind = Optional(&Dict(&Any));

const STOP: Kind = Optional(&Union(&[("", Text), ("", ListOf(&Text, 0, 4))]));
const STREAM_OPTIONS: Kind =
    Optional(&Model(&[optional("include_usage", BOOL_OR_NONE), optional("continuous_usage_stats", BOOL_OR_NONE)]));
const XARG: Kind =
    Union(&[("", Text), ("", Int), ("", Float), ("", List(&Union(&[("", Text), ("", Int), ("", Float)])))]);
const XARGS: Kind = Optional(&Dict(&XARG));
const PAYLOAD: Kind = OneOf(&["tensors", "none"]);
const SIDE: Kind = Optional(&OneOf(&["left", "right"]));

const REPETITION: Kind = Dataclass(
    "RepetitionDetectionParams",
    &[optional("max_pattern_size", Int), optional("min_pattern_size", Int), optional("min_count", Int)],
);
const STRUCTURED: Kind = Dataclass(
    "StructuredOutputsParams",
    &[
        optional("json", Optional(&Union(&[("", Text), ("", Dict(&Any))]))),
        optional("regex", TEXT_OR_NONE),
        optional("choice", Optional(&List(&Text))),
        optional("grammar", TEXT_OR_NONE),
        optional("json_object", BOOL_OR_NONE),
        optional("disable_any_whitespace", Bool),
        optional("disable_additional_properties", Bool),
        optional("whitespace_pattern", TEXT_OR_NONE),
        optional("structural_tag", TEXT_OR_NONE),
    ],
);

const JSON_SCHEMA: Kind = Model(&[
    required("name", Text),
    optional("description", TEXT_OR_NONE),
    optional("schema", OBJECT),
    optional("strict", BOOL_OR_NONE),
]);
const RESPONSE_FORMAT: Kind = Optional(&Union(&[
    (
        "",
        Model(&[
            required("type", OneOf(&["text", "json_object", "json_schema"])),
            optional("json_schema", Optional(&JSON_SCHEMA)),
        ]),
    ),
    ("", Model(&[required("type", OneOf(&["structural_tag"])), required("format", Any)])),
    (
        "",
        Model(&[
            required("type", OneOf(&["structural_tag"])),
            required(
                "structures",
                List(&Model(&[required("begin", Text), optional("schema", OBJECT), required("end", Text)])),
            ),
            required("triggers", List(&Text)),
        ]),
    ),
]));

const TOOL: Kind = Model(&[
    optional("type", OneOf(&["function"])),
    required(
        "function",
        Model(&[
            required("name", Text),
            optional("description", TEXT_OR_NONE),
            optional("parameters", OBJECT),
            optional("strict", BOOL_OR_NONE),
            optional("defer_loading", BOOL_OR_NONE),
        ]),
    ),
    optional("defer_loading", BOOL_OR_NONE),
]);
const TOOLS: Kind = Optional(&List(&TOOL));
const TOOL_CHOICE: Kind = Optional(&Union(&[
    ("", OneOf(&["none"])),
    ("", OneOf(&["auto"])),
    ("", OneOf(&["required"])),
    ("", Model(&[required("function", Model(&[required("name", Text)])), optional("type", OneOf(&["function"]))])),
]));

const CONTENT: Kind = Union(&[("", Text), ("", Iterable)]);
/// A message with one of OpenAI's roles, or any other message.
const MESSAGE: Kind = Union(&[
    (
        "ChatCompletionDeveloperMessageParam",
        Typed(&[required("content", CONTENT), required("role", OneOf(&["developer"])), optional("name", Text)]),
    ),
    (
        "ChatCompletionSystemMessageParam",
        Typed(&[required("content", CONTENT), required("role", OneOf(&["system"])), optional("name", Text)]),
    ),
    (
        "ChatCompletionUserMessageParam",
        Typed(&[required("content", CONTENT), required("role", OneOf(&["user"])), optional("name", Text)]),
    ),
    (
        "ChatCompletionAssistantMessageParam",
        Typed(&[
            required("role", OneOf(&["assistant"])),
            optional("content", Optional(&CONTENT)),
            optional("name", Text),
            optional("refusal", TEXT_OR_NONE),
            optional("tool_calls", Iterable),
        ]),
    ),
    (
        "ChatCompletionToolMessageParam",
        Typed(&[required("content", CONTENT), required("role", OneOf(&["tool"])), required("tool_call_id", Text)]),
    ),
    (
        "ChatCompletionFunctionMessageParam",
        Typed(&[required("content", TEXT_OR_NONE), required("name", Text), required("role", OneOf(&["function"]))]),
    ),
    (
        "CustomChatCompletionMessageParam",
        Typed(&[
            required("role", Text),
            optional("content", Union(&[("", Text), ("", List(&Any))])),
            optional("name", Text),
            optional("tool_call_id", TEXT_OR_NONE),
            optional("tool_calls", Optional(&Iterable)),
        ]),
    ),
    ("Message", Model(&[required("author", Any), optional("content", List(&Any))])),
]);

const TOKEN: Kind = IntFrom(0);
const PROMPT: Kind = Optional(&Union(&[("", List(&TOKEN)), ("", List(&List(&TOKEN))), ("", Text), ("", List(&Text))]));

pub(super) const COMPLETION: &[Field] = &[
    optional("model", TEXT_OR_NONE),
    optional("prompt", PROMPT),
    optional("echo", BOOL_OR_NONE),
    optional("frequency_penalty", FLOAT_OR_NONE),
    optional("logit_bias", Optional(&Dict(&Float))),
    optional("logprobs", INT_OR_NONE),
    optional("max_tokens", INT_OR_NONE),
    optional("n", Int),
    optional("presence_penalty", FLOAT_OR_NONE),
    optional("seed", Optional(&Int64)),
    optional("stop", STOP),
    optional("stream", BOOL_OR_NONE),
    optional("stream_options", STREAM_OPTIONS),
    optional("suffix", TEXT_OR_NONE),
    optional("temperature", FLOAT_OR_NONE),
    optional("top_p", FLOAT_OR_NONE),
    optional("user", TEXT_OR_NONE),
    optional("use_beam_search", Bool),
    optional("top_k", INT_OR_NONE),
    optional("min_p", FLOAT_OR_NONE),
    optional("repetition_penalty", FLOAT_OR_NONE),
    optional("watermarking", BOOL_OR_NONE),
    optional("length_penalty", Float),
    optional("stop_token_ids", INTS),
    optional("include_stop_str_in_output", Bool),
    optional("ignore_eos", Bool),
    optional("min_tokens", Int),
    optional("skip_special_tokens", BOOL_OR_NONE),
    optional("spaces_between_special_tokens", Bool),
    optional("truncate_prompt_tokens", Optional(&IntFrom(-1))),
    optional("truncation_side", SIDE),
    optional("allowed_token_ids", INTS),
    optional("prompt_logprobs", INT_OR_NONE),
    optional("logprob_token_ids", INTS),
    optional("bad_words", List(&Text)),
    optional("add_special_tokens", Bool),
    optional("response_format", RESPONSE_FORMAT),
    optional("structured_outputs", Optional(&STRUCTURED)),
    optional("priority", Int64),
    optional("request_id", Text),
    optional("session_id", TEXT_OR_NONE),
    optional("return_tokens_as_token_ids", BOOL_OR_NONE),
    optional("return_token_ids", BOOL_OR_NONE),
    optional("return_weight_versions", Bool),
    optional("routed_experts_prompt_start", IntFrom(0)),
    optional("return_token_offsets", BOOL_OR_NONE),
    optional("mm_payload", PAYLOAD),
    optional("return_mm_kwargs", BOOL_OR_NONE),
    optional("cache_salt", TEXT_OR_NONE),
    optional("kv_transfer_params", OBJECT),
    optional("ec_transfer_params", OBJECT),
    optional("vllm_xargs", XARGS),
    optional("repetition_detection", Optional(&REPETITION)),
    optional("stream_interval", Optional(&IntFrom(1))),
];

pub(super) const CHAT: &[Field] = &[
    required("messages", List(&MESSAGE)),
    optional("model", TEXT_OR_NONE),
    optional("frequency_penalty", FLOAT_OR_NONE),
    optional("logit_bias", Optional(&Dict(&Float))),
    optional("logprobs", BOOL_OR_NONE),
    optional("top_logprobs", IntOrNull),
    optional("max_tokens", INT_OR_NONE),
    optional("max_completion_tokens", INT_OR_NONE),
    optional("n", INT_OR_NONE),
    optional("presence_penalty", FLOAT_OR_NONE),
    optional("response_format", RESPONSE_FORMAT),
    optional("seed", Optional(&Int64)),
    optional("stop", STOP),
    optional("stream", BOOL_OR_NONE),
    optional("stream_options", STREAM_OPTIONS),
    optional("temperature", FLOAT_OR_NONE),
    optional("top_p", FLOAT_OR_NONE),
    optional("tools", TOOLS),
    optional("tool_choice", TOOL_CHOICE),
    optional("reasoning_effort", Optional(&OneOf(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]))),
    optional("include_reasoning", Bool),
    optional("parallel_tool_calls", BOOL_OR_NONE),
    optional("user", TEXT_OR_NONE),
    optional("use_beam_search", Bool),
    optional("top_k", INT_OR_NONE),
    optional("min_p", FLOAT_OR_NONE),
    optional("repetition_penalty", FLOAT_OR_NONE),
    optional("watermarking", BOOL_OR_NONE),
    optional("length_penalty", Float),
    optional("stop_token_ids", INTS),
    optional("include_stop_str_in_output", Bool),
    optional("ignore_eos", Bool),
    optional("min_tokens", Int),
    optional("skip_special_tokens", BOOL_OR_NONE),
    optional("spaces_between_special_tokens", Bool),
    optional("truncate_prompt_tokens", Optional(&IntFrom(-1))),
    optional("truncation_side", SIDE),
    optional("prompt_logprobs", INT_OR_NONE),
    optional("logprob_token_ids", INTS),
    optional("allowed_token_ids", INTS),
    optional("bad_words", List(&Text)),
    optional("echo", Bool),
    optional("add_generation_prompt", Bool),
    optional("continue_final_message", Bool),
    optional("add_special_tokens", Bool),
    optional("documents", Optional(&List(&Dict(&Text)))),
    optional("chat_template", TEXT_OR_NONE),
    optional("chat_template_kwargs", OBJECT),
    optional("media_io_kwargs", Optional(&Dict(&Dict(&Any)))),
    optional("mm_processor_kwargs", OBJECT),
    optional("structured_outputs", Optional(&STRUCTURED)),
    optional("priority", Int64),
    optional("request_id", Text),
    optional("session_id", TEXT_OR_NONE),
    optional("return_tokens_as_token_ids", BOOL_OR_NONE),
    optional("return_token_ids", BOOL_OR_NONE),
    optional("return_weight_versions", Bool),
    optional("routed_experts_prompt_start", IntFrom(0)),
    optional("return_token_offsets", BOOL_OR_NONE),
    optional("return_prompt_text", BOOL_OR_NONE),
    optional("mm_payload", PAYLOAD),
    optional("return_mm_kwargs", BOOL_OR_NONE),
    optional("cache_salt", TEXT_OR_NONE),
    optional("kv_transfer_params", OBJECT),
    optional("ec_transfer_params", OBJECT),
    optional("vllm_xargs", XARGS),
    optional("repetition_detection", Optional(&REPETITION)),
    optional("stream_interval", Optional(&IntFrom(1))),
];

/// `sampling_params` in the body of `/inference/v1/generate`.
const SAMPLING: &[Field] = &[
    optional("n", Int),
    optional("presence_penalty", Float),
    optional("frequency_penalty", Float),
    optional("repetition_penalty", Float),
    optional("temperature", Float),
    optional("watermarking", BOOL_OR_NONE),
    optional("top_p", Float),
    optional("top_k", Int),
    optional("min_p", Float),
    optional("seed", INT_OR_NONE),
    optional("stop", Optional(&Union(&[("", Text), ("", List(&Text))]))),
    optional("stop_token_ids", INTS),
    optional("ignore_eos", Bool),
    optional("max_tokens", INT_OR_NONE),
    optional("min_tokens", Int),
    optional("logprobs", INT_OR_NONE),
    optional("prompt_logprobs", INT_OR_NONE),
    optional("logprob_token_ids", INTS),
    optional("detokenize", Bool),
    optional("skip_special_tokens", Bool),
    optional("spaces_between_special_tokens", Bool),
    optional("include_stop_str_in_output", Bool),
    optional("structured_outputs", Optional(&STRUCTURED)),
    optional("logit_bias", Optional(&Dict(&Float))),
    optional("allowed_token_ids", INTS),
    optional("extra_args", OBJECT),
    optional("bad_words", Optional(&List(&Text))),
    optional("thinking_token_budget", INT_OR_NONE),
    optional("repetition_detection", Optional(&REPETITION)),
];

pub(super) const GENERATE: &[Field] = &[
    optional("request_id", Text),
    required("token_ids", ListOf(&Int, 1, usize::MAX)),
    required("sampling_params", Instance("SamplingParams", SAMPLING)),
    optional("model", TEXT_OR_NONE),
    optional("return_token_ids", BOOL_OR_NONE),
    optional("stream", BOOL_OR_NONE),
    optional("stream_options", STREAM_OPTIONS),
    optional("cache_salt", TEXT_OR_NONE),
    optional("priority", Int64),
    optional("kv_transfer_params", OBJECT),
    optional("ec_transfer_params", OBJECT),
];

/// The body of `/tokenize`, for a text or a chat.
pub(super) const TOKENIZE: Kind = Union(&[
    (
        "",
        Model(&[
            optional("model", TEXT_OR_NONE),
            required("prompt", Text),
            optional("add_special_tokens", Bool),
            optional("return_token_strs", BOOL_OR_NONE),
        ]),
    ),
    (
        "",
        Model(&[
            optional("model", TEXT_OR_NONE),
            required("messages", List(&MESSAGE)),
            optional("add_generation_prompt", Bool),
            optional("return_token_strs", BOOL_OR_NONE),
            optional("continue_final_message", Bool),
            optional("add_special_tokens", Bool),
            optional("chat_template", TEXT_OR_NONE),
            optional("chat_template_kwargs", OBJECT),
            optional("media_io_kwargs", Optional(&Dict(&Dict(&Any)))),
            optional("mm_processor_kwargs", OBJECT),
            optional("tools", TOOLS),
        ]),
    ),
]);

pub(super) const DETOKENIZE: &[Field] = &[optional("model", TEXT_OR_NONE), required("tokens", List(&Int))];
