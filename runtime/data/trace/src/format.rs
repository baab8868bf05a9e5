//! The formats by name, and the other options of a reader.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Declares the formats, each with its description, name and aliases.
macro_rules! formats {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $(| $alias:literal)*,)*) => {
        /// The formats of files with requests. Every command that reads requests reads all of them, provided that
        /// the file has the data which the command needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Format {
            $($(#[$doc])* $variant,)*
        }

        impl Format {
            /// All formats.
            pub const ALL: [Format; [$($name),*].len()] = [$(Format::$variant),*];

            /// The format's name, with hyphens: on the command line, in scenarios, and as `source` of a capture.
            /// [`FromStr`] also accepts underscores.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Format::$variant => $name,)*
                }
            }

            /// Other names that [`FromStr`] accepts.
            #[must_use]
            pub fn aliases(self) -> &'static [&'static str] {
                match self {
                    $(Format::$variant => &[$($alias),*],)*
                }
            }
        }
    };
}

formats! {
    /// A capture, or a trace of vllm-vcr: the requests to an engine and its answers.
    Capture = "capture",
    /// One JSON object per line, as published with Mooncake (FAST '25) and extended by Dynamo with sessions,
    /// delays and priorities.
    Mooncake = "mooncake",
    /// Mooncake rows in which prompts of later turns contain only new content; see [`Trace::is_delta`](crate::Trace).
    MooncakeDelta = "mooncake-delta",
    /// Mooncake rows with dependencies, in both of Dynamo's versions: `wait_for`, or a header and `dependencies`.
    AgenticMooncake = "agentic-mooncake",
    /// Sessions of tool calls as lists of lengths, without arrivals. Only for closed loops.
    AppliedComputeAgentic = "applied-compute-agentic" | "applied-compute",
    /// Dynamo's log of requests (`dynamo.request.trace.v1`), in one or more files.
    Dynamo = "dynamo" | "dynamo-trace",
    /// Recorded plays of coding agents as JSON documents (Weka, AgentX): one or more files, or a folder.
    Weka = "weka",
    /// The CSV of the Azure LLM inference traces: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`. The CSV has no
    /// content ids, so prompts share no prefixes.
    Azure = "azure",
    /// The usage traces of Qwen on Bailian: chats that name the chat they continue. Times are in seconds, blocks
    /// have 16 tokens.
    QwenBailian = "qwen-bailian",
    /// The CSV of BurstGPT, with or without sessions. Requests without response tokens failed and are left out.
    BurstGpt = "burstgpt",
    /// The CSV of Vidur: `arrived_at` in seconds, `num_prefill_tokens`, `num_decode_tokens`.
    Vidur = "vidur",
    /// The CSV of the Splitwise simulator: `arrival_timestamp` in seconds, `prompt_size`, `token_size`.
    Splitwise = "splitwise",
    /// A run of LLMServingSim on a real engine, or a workload of LLMServingSim.
    LlmServingSim = "llmservingsim",
    /// A report of guidellm, as JSON.
    Guidellm = "guidellm",
    /// A result of `vllm bench serve --save-detailed`.
    VllmBench = "vllm-bench",
    /// Results of `sglang.bench_serving --output-details`.
    SglangBench = "sglang-bench",
    /// `profile_export.jsonl` of aiperf.
    Aiperf = "aiperf",
    /// `per_request_lifecycle_metrics.json` of inference-perf.
    InferencePerf = "inference-perf",
    /// OpenTelemetry spans with GenAI attributes, as OTLP JSON.
    Otel = "otel",
    /// Prompts and responses: JSON, JSONL, CSV or Parquet.
    Dataset = "dataset",
    /// A list of requests that vcr wrote, or a table with a row for each request.
    Requests = "requests" | "run" | "table",
    /// Observations, as `vcr mirror` writes them.
    Observations = "observations",
    /// OpenAI's streams, as raw text or chunk by chunk.
    Sse = "sse",
    /// Responses of servers with their times.
    Responses = "responses",
    /// Request logs of servers.
    Log = "log",
}

impl Format {
    /// Whether requests in this format never have arrivals, so that only a closed loop can replay them.
    #[must_use]
    pub fn needs_closed_loop(self) -> bool {
        self == Format::AppliedComputeAgentic
    }

    /// Whether a trace in this format may have several files.
    #[must_use]
    pub fn has_many_files(self) -> bool {
        matches!(self, Format::Dynamo | Format::Weka)
    }

    /// All names, for messages.
    #[must_use]
    pub fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for Format {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let hyphened = name.replace('_', "-");
        let is_named = |format: &Format| format.name() == hyphened || format.aliases().contains(&hyphened.as_str());
        let found = Format::ALL.into_iter().find(is_named);
        found.ok_or_else(|| format!("invalid format `{name}`: expected {}", Format::names()))
    }
}

/// The unit of the timestamps of Mooncake rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampUnit {
    /// The unit of the published files.
    #[default]
    Milliseconds,
    /// Seconds, read with a precision of a microsecond.
    Seconds,
}

impl TimestampUnit {
    /// All units with their names.
    pub const ALL: [(&str, TimestampUnit); 2] = [("ms", TimestampUnit::Milliseconds), ("s", TimestampUnit::Seconds)];
}

impl FromStr for TimestampUnit {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = TimestampUnit::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, unit)| unit).ok_or_else(|| "expected ms or s".to_owned())
    }
}

/// Treatment of invalid rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strictness {
    /// Errors are repaired if possible, and counted as warnings: an `input_length` that the hash ids do not cover
    /// is reduced, and an invalid line of a capture is skipped.
    Lenient,
    /// Errors are refused. Data without an effect (unknown fields, surplus hash ids) is counted as a warning.
    #[default]
    Standard,
    /// Warnings are errors.
    Strict,
}

/// The scope in which equal hash ids mean equal tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashIdScope {
    /// The whole trace.
    #[default]
    Trace,
    /// A play: all sessions with the same `play_id`, or a single session without one. A header with
    /// `"hash_id_scope": "local"` means this, because an agent and its subagents share blocks.
    Play,
    /// A session.
    Session,
}

/// How the requests of a capture are joined into sessions. A turn starts a think time after the end of the previous
/// turn; any other request starts at its recorded arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sessions {
    /// The sessions that the capture states in `session`.
    #[default]
    Recorded,
    /// As `Recorded`. In addition, a request without a session is the next turn of an earlier request that had
    /// ended, if its prompt extends the earlier prompt.
    ByPrefix,
    /// No sessions: every request starts at its recorded arrival.
    None,
}

impl Sessions {
    /// All rules with their names.
    pub const ALL: [(&str, Sessions); 3] =
        [("recorded", Sessions::Recorded), ("by-prefix", Sessions::ByPrefix), ("none", Sessions::None)];
}

impl FromStr for Sessions {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Sessions::ALL.into_iter().find(|(known, _)| *known == name.replace('_', "-"));
        found.map(|(_, sessions)| sessions).ok_or_else(|| "expected recorded, by-prefix or none".to_owned())
    }
}

/// From which time the times of a subagent's requests count ([`Format::Weka`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NestedTimestamps {
    /// From the start of the subagent if any request of the trace would otherwise precede its subagent; or else
    /// from the start of the play.
    #[default]
    Auto,
    /// From the start of the play.
    Absolute,
    /// From the start of the subagent.
    Relative,
}

impl NestedTimestamps {
    /// All variants with their names.
    pub const ALL: [(&str, NestedTimestamps); 3] = [
        ("auto", NestedTimestamps::Auto),
        ("absolute", NestedTimestamps::Absolute),
        ("relative", NestedTimestamps::Relative),
    ];
}

impl FromStr for NestedTimestamps {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = NestedTimestamps::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, basis)| basis).ok_or_else(|| "expected auto, absolute or relative".to_owned())
    }
}

/// Shared first blocks of a trace's sessions, for traces without content ids.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedPrefix {
    /// Share of a first prompt's blocks that is shared, from 0 to 1.
    pub ratio: f64,
    /// Number of groups of sessions that share first blocks; 0 if no sessions share blocks.
    pub groups: u32,
    /// The seed that assigns sessions to groups.
    pub seed: u64,
}

impl SharedPrefix {
    pub(crate) fn group(&self, session: u32) -> Option<u32> {
        if self.groups == 0 || self.ratio == 0.0 {
            return None;
        }
        let draw = xxhash_rust::xxh3::xxh3_64_with_seed(&session.to_le_bytes(), self.seed);
        // The high half of the product is distributed uniformly over the groups.
        Some(((u128::from(draw) * u128::from(self.groups)) >> 64) as u32)
    }
}

/// The options by which the user of a command states a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatOption {
    /// Name of the option for the format.
    pub format: &'static str,
    /// Name of the option for the unit of timestamps, if there is one.
    pub timestamp_unit: Option<&'static str>,
}

/// Options for reading a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// The format; `None` to detect it from the file's name and start.
    pub format: Option<Format>,
    /// How the user can state the format, for errors.
    pub format_option: Option<FormatOption>,
    /// Number of prompt tokens of a hash id. `None` for a Mooncake trace that is opened by its path means the size
    /// that follows from the first rows, if any, or else [`TraceOptions::DEFAULT_BLOCK_SIZE`]. The header of an
    /// agentic trace and Dynamo's log state the size, which must equal this one. A capture's own size takes
    /// precedence.
    pub block_size_tokens: Option<NonZeroU32>,
    /// The unit of the timestamps in Mooncake rows. Other formats have a fixed unit.
    pub timestamp_unit: TimestampUnit,
    /// Treatment of invalid rows.
    pub strictness: Strictness,
    /// Whether every first turn needs a timestamp. False for closed-loop replay, which ignores arrivals.
    pub first_timestamp_required: bool,
    /// Whether the times of a capture's recorded answers are kept.
    pub answer_times: bool,
    /// Whether the requests of an HTTP capture are kept as clients sent them.
    pub calls: bool,
    /// How the requests of a capture are joined into sessions.
    pub sessions: Sessions,
    /// The scope in which equal hash ids mean equal tokens; `None` for the scope that the trace states.
    pub hash_id_scope: Option<HashIdScope>,
    /// From which time the times of a subagent's requests count.
    pub nested_timestamps: NestedTimestamps,
    /// The shared first blocks of sessions, for [`Format::AppliedComputeAgentic`].
    pub shared_prefix: SharedPrefix,
}

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions {
            format: None,
            format_option: None,
            block_size_tokens: None,
            timestamp_unit: TimestampUnit::default(),
            strictness: Strictness::default(),
            first_timestamp_required: true,
            answer_times: false,
            calls: false,
            sessions: Sessions::default(),
            hash_id_scope: None,
            nested_timestamps: NestedTimestamps::default(),
            shared_prefix: SharedPrefix::default(),
        }
    }
}

impl TraceOptions {
    /// Number of prompt tokens of a hash id in the published Mooncake traces.
    pub const DEFAULT_BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(512).expect("512 is not 0");

    pub(crate) fn block_size_or_default(&self) -> NonZeroU32 {
        self.block_size_tokens.unwrap_or(Self::DEFAULT_BLOCK_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_both_spellings() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(format.name().replace('-', "_").parse(), Ok(format));
            assert!(format.aliases().iter().all(|alias| alias.parse() == Ok(format)));
        }
        let error = "mooncakes".parse::<Format>().unwrap_err();
        assert!(error.contains("`mooncakes`: expected capture, mooncake, mooncake-delta, agentic-mooncake"), "{error}");
    }

    #[test]
    fn groups_are_drawn_evenly_from_the_seed() {
        let shared = SharedPrefix { ratio: 0.5, groups: 4, seed: 42 };
        let mut sizes = [0; 4];
        for session in 0..4000 {
            sizes[shared.group(session).unwrap() as usize] += 1;
        }
        assert!(sizes.iter().all(|size| (900..1100).contains(size)), "{sizes:?}");
        assert_ne!(
            (0..64).map(|s| SharedPrefix { seed: 7, ..shared }.group(s)).collect::<Vec<_>>(),
            (0..64).map(|s| shared.group(s)).collect::<Vec<_>>()
        );
        assert_eq!(SharedPrefix { groups: 0, ..shared }.group(3), None);
    }
}
