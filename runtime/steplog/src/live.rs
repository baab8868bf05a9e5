//! The schema of a live capture, and its lines in terms of [`StepLine`].

use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::LogError;
use crate::line::{Id, Scheduled, StepLine};

/// The first line: what the scheduler was told.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LiveEngine {
    pub(crate) num_gpu_blocks: u32,
    pub(crate) block_size: u32,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_active_reqs: Option<u32>,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_model_len: u32,
    pub(crate) policy: String,
    pub(crate) chunked_prefill: bool,
    pub(crate) long_prefill_token_threshold: u32,
    pub(crate) prefix_caching: bool,
    pub(crate) async_scheduling: bool,
    pub(crate) reserve_full_isl: bool,
    pub(crate) watermark: f64,
    pub(crate) max_loras: Option<u32>,
    pub(crate) num_spec_tokens: u32,
}

/// A request that reached the scheduler.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LiveAdded {
    pub(crate) id: String,
    /// Prompt tokens.
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) prio: i32,
    /// Wall-clock seconds.
    pub(crate) arrival: f64,
    pub(crate) lora: Option<u32>,
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LiveStep {
    pub(crate) step: u64,
    pub(crate) added: Vec<LiveAdded>,
    pub(crate) aborted: Vec<String>,
    /// Flushed to the workers.
    pub(crate) finished: Vec<String>,
    pub(crate) preempted: Vec<String>,
    pub(crate) sched: Vec<Scheduled>,
    pub(crate) total: u32,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) free_blocks: u32,
    pub(crate) usage: f64,
    /// Monotonic seconds: scheduling begins, ends; output processing begins, ends.
    #[serde(default)]
    pub(crate) t: Vec<f64>,
    #[serde(deserialize_with = "pairs")]
    pub(crate) emitted: Vec<(String, u32)>,
    pub(crate) stopped: Vec<(String, String)>,
    pub(crate) free_blocks_after: u32,
}

/// The entries of an object in their order.
fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, u32)>, D::Error> {
    struct Pairs;
    impl<'de> serde::de::Visitor<'de> for Pairs {
        type Value = Vec<(String, u32)>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of tokens by request")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            std::iter::from_fn(|| map.next_entry().transpose()).collect()
        }
    }
    deserializer.deserialize_map(Pairs)
}

/// The settings and the steps of a capture, with the numbers of their lines.
pub(crate) struct LiveLog {
    pub(crate) engine: LiveEngine,
    /// The first line as it stands.
    pub(crate) settings: serde_json::Map<String, Value>,
    pub(crate) steps: Vec<(u64, LiveStep)>,
}

impl LiveLog {
    pub(crate) fn read(path: &Path) -> Result<Self, LogError> {
        let file = std::fs::File::open(path).map_err(LogError::io(path))?;
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(file)).zip(1u64..);
        let mut next = || match lines.next() {
            None => Ok(None),
            Some((Ok(text), number)) => Ok(Some((text, number))),
            Some((Err(error), _)) => Err(LogError::Io { path: path.to_owned(), error }),
        };
        let Some((head, _)) = next()? else { return Err(LogError::file(path, "the log is empty")) };
        let settings: serde_json::Map<String, Value> =
            serde_json::from_str(&head).map_err(|error| LogError::line(path, 1, error))?;
        if settings.get("kind").and_then(Value::as_str) != Some("engine") {
            return Err(LogError::line(path, 1, "the first line of a live capture has `kind` \"engine\""));
        }
        let engine = serde_json::from_str(&head).map_err(|error| LogError::line(path, 1, error))?;
        let mut steps = Vec::new();
        while let Some((text, number)) = next()? {
            if !text.trim().is_empty() {
                // From text: the order of an object's entries is lost in a `Value`.
                let step = serde_json::from_str(&text).map_err(|error| LogError::line(path, number, error))?;
                steps.push((number, step));
            }
        }
        Ok(Self { engine, settings, steps })
    }

    /// The steps as lines. What a live capture does not say stays unset.
    pub(crate) fn lines(&self) -> Vec<StepLine> {
        self.steps.iter().map(|(_, step)| step_line(step)).collect()
    }
}

fn step_line(step: &LiveStep) -> StepLine {
    let names = |names: &[String]| -> Vec<Id> { sorted(names).into_iter().map(Id::Name).collect() };
    let named = |name: &String| Id::Name(name.clone());
    StepLine {
        add: step.added.iter().map(|added| named(&added.id)).collect(),
        abort: step.aborted.iter().map(named).collect(),
        s: Some(step.step),
        sched: Some(step.sched.clone()),
        tot: Some(step.total),
        pre: names(&step.preempted),
        flush: names(&step.finished),
        wait: Some(step.waiting),
        free: Some(step.free_blocks),
        u: Some(step.step),
        out: Some(step.emitted.iter().map(|(name, tokens)| (named(name), *tokens)).collect()),
        fin: step.stopped.iter().map(|(name, reason)| (named(name), reason.clone())).collect(),
        start_ms: step.t.first().map(|seconds| seconds * 1e3),
        duration_ms: match step.t[..] {
            [begin, .., end] => Some((end - begin) * 1e3),
            _ => None,
        },
        ..StepLine::default()
    }
}

pub(crate) fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}
