//! A workload in memory.

pub(crate) mod hash_ids;
pub(crate) mod media;

use std::fmt;
use std::sync::Arc;

use hash_ids::{HashIdList, HashIdRange, HashIds};

use crate::MediaItem;
use crate::capture::RecordedCall;

/// A workload: requests in file order, and the shared parts of their prompts.
///
/// The block ids, items and so on of all requests are stored in flat arrays; a request has ranges of these arrays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The requests, in the order of the file.
    pub requests: Vec<TraceRequest>,
    /// Content-block ids of all prompts, numbered densely from 0 in the order of their first appearance; see
    /// [`Trace::hash_ids`].
    pub hash_ids: HashIds,
    /// Number of different ids in [`Trace::hash_ids`].
    pub distinct_hash_ids: u32,
    /// Number of prompt tokens of a content-block id.
    pub block_size_tokens: u32,
    /// Recorded output tokens of all requests that have them; see [`Trace::output_token_ids`].
    pub output_token_ids: Vec<u32>,
    /// Multimodal items of all prompts; see [`Trace::items`].
    pub items: Vec<MediaItem>,
    /// Times of the recorded answers, by request; empty unless [`TraceOptions::answer_times`](crate::TraceOptions)
    /// is set.
    pub answer_times: Vec<Option<AnswerTimes>>,
    /// Requests as clients sent them over HTTP, by request; empty unless
    /// [`TraceOptions::calls`](crate::TraceOptions) is set.
    pub calls: Vec<Option<Arc<RecordedCall>>>,
    /// The outputs of recorded answers; see [`AnswerTimes::outputs`].
    pub output_times: Vec<OutputTime>,
    /// Recorded durations of requests, where known; empty unless [`Trace::has_free_turns`].
    pub recorded_ns: Vec<Option<u64>>,
    /// The policy-class names, to which requests refer by index.
    pub policy_classes: Vec<Box<str>>,
    /// Dependencies of requests; see [`Trace::dependencies`]. They contain no cycle.
    pub dependencies: Vec<Dependency>,
    /// Whether a request waits only for its dependencies and its arrival, not for the session's previous turn.
    pub has_free_turns: bool,
    /// Whether the prompts of later turns contain only new content. The complete prompt of such a turn is the
    /// prompt and the answer of the previous turn, followed by the turn's own blocks.
    pub is_delta: bool,
    /// Number of sessions. A request without a session id is its own session.
    pub sessions: u32,
    /// Names of sessions in the file; see [`Trace::session_id`].
    pub session_ids: Vec<Option<Box<str>>>,
    /// Warnings of the reader, in order of first appearance.
    pub warnings: Vec<TraceWarning>,
}

/// One request of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// The request's name in the file, if it has one.
    pub request_id: Option<Box<str>>,
    /// Line of the file from which the request was read, from 1.
    pub line: u32,
    /// Number of the session; sessions are numbered in the order of their first requests.
    pub session: u32,
    /// Index of the request in the session, from 0.
    pub turn: u32,
    /// Index in [`Trace::requests`] of the turn that follows the end of this one. `None` for the last turn of a
    /// session, and with [`Trace::has_free_turns`].
    pub next_turn: Option<u32>,
    /// Arrival of a first turn, in nanoseconds after the earliest first turn. For a request with dependencies, its
    /// earliest start. `None` for later turns that follow a previous turn, and for first turns without a timestamp
    /// if [`TraceOptions::first_timestamp_required`](crate::TraceOptions) is false.
    pub arrival_ns: Option<u64>,
    /// Nanoseconds from the end of the previous turn to the start of this one; 0 for first turns.
    pub delay_ns: u64,
    /// Prompt length; at least 1.
    pub input_tokens: u32,
    /// Number of tokens to generate; may be 0.
    pub output_tokens: u32,
    /// The request's dependencies, as a range of [`Trace::dependencies`]. Empty unless [`Trace::has_free_turns`].
    pub dependencies: ItemRange,
    /// The prompt's content-block ids, as a range of [`Trace::hash_ids`]. Empty if the source has no content; such
    /// a prompt shares nothing with other prompts.
    pub hash_ids: HashIdRange,
    /// The recorded output, as a range of [`Trace::output_token_ids`]: empty, or `output_tokens` long.
    pub output_token_ids: ItemRange,
    /// The prompt's multimodal items, as a range of [`Trace::items`].
    pub items: ItemRange,
    /// Scheduling priority of the source; 0 if absent.
    pub priority: i32,
    /// Strict priority tier of the source; 0 if absent.
    pub strict_priority: u32,
    /// Index of the policy class in [`Trace::policy_classes`].
    pub policy_class: Option<u32>,
}

/// A dependency of a request. The request starts when the triggers of all its dependencies have occurred and
/// their delays have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Index in [`Trace::requests`] of the other request.
    pub request: u32,
    /// The event of the other request for which this request waits.
    pub trigger: Trigger,
    /// Nanoseconds to wait after this event.
    pub delay_ns: u64,
}

/// The event for which a [`Dependency`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The other request arrives.
    Dispatch,
    /// The other request ends, in any way.
    Completion,
}

/// Times of a recorded answer, in nanoseconds since the arrival of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTimes {
    /// Time of the admission.
    pub queue_ns: u64,
    /// Time of the end; not before the last output.
    pub end_ns: u64,
    /// Number of prompt tokens that were in the engine's prefix cache.
    pub cached_tokens: u32,
    /// The outcome of the answer.
    pub end: AnswerEnd,
    /// The answer's outputs, as a range of [`Trace::output_times`].
    pub outputs: ItemRange,
}

/// The outcome of a recorded answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The answer ended normally.
    Whole,
    /// The client cancelled the request, or the capture ended before the answer.
    Aborted,
    /// The answer ended with an error.
    Failed,
}

/// One output of a recorded answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTime {
    /// Nanoseconds since the arrival of the request.
    pub after_ns: u64,
    /// Number of tokens of the output.
    pub num_tokens: u32,
}

/// A range of one of the flat arrays of a [`Trace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemRange {
    /// Index of the first item.
    pub start: u32,
    /// Number of items.
    pub len: u32,
}

impl ItemRange {
    fn of<T>(self, items: &[T]) -> &[T] {
        &items[self.start as usize..][..self.len as usize]
    }
}

impl Trace {
    /// The ids of a prompt's content blocks, in order.
    ///
    /// Each id stands for [`Trace::block_size_tokens`] tokens, the last one for the rest of `input_tokens`. Equal
    /// ids mean equal tokens, but a shared prefix only if all ids before them are also equal.
    #[must_use]
    pub fn hash_ids(&self, request: &TraceRequest) -> HashIdList<'_> {
        self.hash_ids.list(request.hash_ids)
    }

    /// The recorded output tokens of a request; empty if none were recorded.
    #[must_use]
    pub fn output_token_ids(&self, request: &TraceRequest) -> &[u32] {
        request.output_token_ids.of(&self.output_token_ids)
    }

    /// The multimodal items of a request's prompt, in the order of their positions. With [`Trace::is_delta`],
    /// positions count from the start of the new content.
    #[must_use]
    pub fn items(&self, request: &TraceRequest) -> &[MediaItem] {
        request.items.of(&self.items)
    }

    /// The outputs of a recorded answer, in order.
    #[must_use]
    pub fn outputs(&self, times: &AnswerTimes) -> &[OutputTime] {
        times.outputs.of(&self.output_times)
    }

    /// The dependencies of a request.
    #[must_use]
    pub fn dependencies(&self, request: &TraceRequest) -> &[Dependency] {
        request.dependencies.of(&self.dependencies)
    }

    /// The name of a session in the file, if any.
    #[must_use]
    pub fn session_id(&self, session: u32) -> Option<&str> {
        self.session_ids.get(session as usize)?.as_deref()
    }

    /// The name of a request's policy class.
    #[must_use]
    pub fn policy_class(&self, request: &TraceRequest) -> Option<&str> {
        request.policy_class.map(|index| &*self.policy_classes[index as usize])
    }

    /// Keeps the first `count` requests, without their references to later requests.
    #[must_use]
    pub fn first(mut self, count: usize) -> Self {
        let cut = count.min(self.requests.len());
        self.requests.truncate(cut);
        let is_kept = |index: u32| (index as usize) < cut;
        let mut kept = Vec::new();
        for request in &mut self.requests {
            request.next_turn = request.next_turn.filter(|index| is_kept(*index));
            let start = kept.len() as u32;
            kept.extend(request.dependencies.of(&self.dependencies).iter().filter(|one| is_kept(one.request)));
            request.dependencies = ItemRange { start, len: kept.len() as u32 - start };
        }
        self.dependencies = kept;
        // Sessions are numbered in the order of their first requests.
        self.sessions = self.requests.iter().map(|request| request.session + 1).max().unwrap_or(0);
        self.session_ids.truncate(self.sessions as usize);
        self.answer_times.truncate(cut);
        self.calls.truncate(cut);
        self.recorded_ns.truncate(cut);
        self
    }

    /// Number of prompt tokens of all requests; with [`Trace::is_delta`], only the new tokens.
    #[must_use]
    pub fn total_input_tokens(&self) -> u64 {
        self.requests.iter().map(|r| u64::from(r.input_tokens)).sum()
    }

    /// Number of output tokens of all requests.
    #[must_use]
    pub fn total_output_tokens(&self) -> u64 {
        self.requests.iter().map(|r| u64::from(r.output_tokens)).sum()
    }
}

/// A warning of a reader, counted over a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceWarning {
    /// Kind of the warning.
    pub kind: WarningKind,
    /// Line of the first occurrence, from 1.
    pub first_line: u32,
    /// Number of rows with this warning.
    pub rows: u32,
}

/// The kinds of [`TraceWarning`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarningKind {
    /// A field or column that the format does not define was ignored.
    UnknownField(Box<str>),
    /// `input_length` was larger than the number of tokens that the hash ids cover, and was reduced to it (only
    /// with [`Strictness::Lenient`](crate::Strictness)).
    InputLengthClamped,
    /// More hash ids than the prompt needs; the surplus ids were dropped.
    SurplusHashIds,
    /// The block size of a Mooncake trace was not given. The lengths and numbers of hash ids fit only this size, in
    /// tokens.
    BlockSizeInferred(u32),
    /// Times of a subagent's requests were taken as counted from the start of the subagent.
    RelativeTimestamps,
    /// An unknown event of a request trace was skipped.
    UnknownEvent(Box<str>),
    /// A request that failed in the recording was left out.
    FailedRequest,
    /// The request that a row continues is not in the file.
    ParentNotFound,
    /// The length of a prompt that was given as text was estimated.
    PromptLengthEstimated,
    /// A warning of the capture reader, with the file and the count; see
    /// [`CaptureWarning`](crate::capture::CaptureWarning).
    Capture(Box<str>),
}

impl fmt::Display for TraceWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            WarningKind::UnknownField(name) => write!(f, "unknown field `{name}` was ignored")?,
            WarningKind::InputLengthClamped => {
                write!(f, "`input_length` was cut to the tokens that `hash_ids` cover")?;
            }
            WarningKind::SurplusHashIds => {
                write!(f, "`hash_ids` beyond the end of the prompt were dropped")?;
            }
            WarningKind::UnknownEvent(name) => write!(f, "event of type `{name}` was skipped")?,
            WarningKind::BlockSizeInferred(tokens) => {
                return write!(f, "block size {tokens} inferred from `input_length` and `hash_ids`");
            }
            WarningKind::RelativeTimestamps => {
                return write!(
                    f,
                    "times of requests of subagents were taken as relative to their subagents: on line {} one is before its",
                    self.first_line
                );
            }
            WarningKind::FailedRequest => {
                write!(f, "a request without response tokens failed when it was recorded and was left out")?;
            }
            WarningKind::ParentNotFound => {
                write!(f, "a chat whose `parent_chat_id` is not in the file starts at its own time alone")?;
            }
            WarningKind::PromptLengthEstimated => {
                write!(f, "the length of a prompt given as text was estimated as 1 token for each 4 bytes")?;
            }
            WarningKind::Capture(text) => return f.write_str(text),
        }
        write!(f, " on {} row(s), first on line {}", self.rows, self.first_line)
    }
}
