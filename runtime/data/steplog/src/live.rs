//! The schema of a live capture, and the conversion to [`StepLine`]s.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use vcr_core::EngineConfigInput;

use crate::error::LogError;
use crate::jsonl::{JsonLines, from_text};
use crate::line::{Encoded, Id, Scheduled, StepLine};
use crate::settings::take_options;

/// The first line of a capture: the settings of the scheduler.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LiveEngine {
    /// Has the value "engine", which identifies a capture.
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    pub(crate) hash_block_size: Option<u32>,
    pub(crate) policy: String,
    #[serde(default)]
    pub(crate) use_v2_model_runner: bool,
    /// Groups of layers; empty if there is one group of full attention.
    #[serde(default)]
    pub(crate) groups: Vec<Value>,
    /// vLLM's `method`, or `multi_module_mtp` if each draft has its own module.
    pub(crate) drafter: Option<String>,
    /// Derived from the drafter by vLLM.
    pub(crate) num_lookahead_tokens: Option<u32>,
    pub(crate) num_hash_lookahead_tokens: Option<u32>,
    /// Number of drafts by batch size: `[first, last, tokens]`.
    #[serde(default)]
    pub(crate) spec_by_batch: Vec<Vec<u32>>,
    pub(crate) free_blocks_at_start: Option<u32>,
    /// The time at which the scheduler was created, in monotonic seconds.
    #[serde(default, rename = "t")]
    _t: IgnoredAny,
    /// Unknown keys. Until [`LiveLog::read`] has taken the options, also the options.
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
    /// The options among the keys. `block_size` is the number of tokens to which the scheduler rounds.
    #[serde(skip)]
    pub(crate) options: EngineConfigInput,
}

impl LiveEngine {
    const ALIASES: &[(&str, &str)] = &[
        ("num_gpu_blocks", "num_blocks"),
        ("num_spec_tokens", "spec"),
        ("max_num_active_reqs", "max_num_active_seqs"),
    ];
    /// Options that captures may lack, by their log keys.
    const OPTIONAL: &[&str] = &[
        "pp",
        "dcp",
        "prefill_schedule_interval",
        "adaptive",
        "max_loras",
        "mamba_cache_mode",
        "drafter",
        "disable_lookahead_block_hashes",
        "disable_chunked_mm_input",
    ];

    /// Moves the options out of the other keys.
    fn take_options(&mut self) -> Result<(), String> {
        self.options = take_options(&mut self.rest, "", Self::ALIASES, Self::OPTIONAL)?;
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LiveAdded {
    pub(crate) id: String,
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) prio: i32,
    /// Time of arrival in wall-clock seconds.
    pub(crate) arrival: f64,
    pub(crate) lora: Option<u32>,
    /// The request shares blocks only with requests that have the same text.
    pub(crate) cache_salt: Option<String>,
    /// Whether the request reuses no cached blocks.
    #[serde(default)]
    pub(crate) skip_reading_prefix_cache: bool,
    /// Multimodal items, in the order of their positions.
    #[serde(default)]
    pub(crate) media: Vec<LiveItem>,
    /// Whether further parts of the prompt may follow (streaming inputs).
    #[serde(default)]
    pub(crate) resumable: bool,
}

/// A multimodal item: `[identifier, offset, length]`. If embeddings replace only some of the item's placeholders,
/// runs follow, each `[start, end]` within the item.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum LiveItem {
    Whole(String, u32, u32),
    Runs(String, u32, u32, Vec<(u32, u32)>),
}

impl LiveItem {
    /// The identifier, the first position and the number of positions.
    pub(crate) fn place(&self) -> (&str, u32, u32) {
        match self {
            Self::Whole(identifier, offset, len) | Self::Runs(identifier, offset, len, _) => {
                (identifier, *offset, *len)
            }
        }
    }

    /// The runs of embeddings; None if every position has an embedding.
    pub(crate) fn runs(&self) -> Option<&[(u32, u32)]> {
        match self {
            Self::Whole(..) => None,
            Self::Runs(.., runs) => Some(runs),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LiveStep {
    pub(crate) step: u64,
    pub(crate) added: Vec<LiveAdded>,
    pub(crate) aborted: Vec<String>,
    /// The time of each abort in monotonic seconds; an earlier step may have been in flight then. Empty if the
    /// capture lacks these times.
    #[serde(default)]
    pub(crate) aborted_at: Vec<f64>,
    /// Ended requests that were announced to the workers.
    pub(crate) finished: Vec<String>,
    pub(crate) preempted: Vec<String>,
    pub(crate) sched: Vec<Scheduled>,
    #[serde(default)]
    pub(crate) enc: Vec<Encoded>,
    /// Identifiers of items that left the encoder cache since the previous step.
    #[serde(default)]
    pub(crate) encf: Vec<String>,
    /// Number of drafts that requests got since the previous step; None if the capture lacks it.
    #[serde(default)]
    pub(crate) drafts: Option<BTreeMap<String, u32>>,
    pub(crate) total: u32,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) free_blocks: u32,
    pub(crate) usage: f64,
    /// Monotonic seconds: scheduling begins, scheduling ends, output processing begins, output processing ends.
    #[serde(default)]
    pub(crate) t: Vec<f64>,
    #[serde(deserialize_with = "pairs")]
    pub(crate) emitted: Vec<(String, u32)>,
    pub(crate) stopped: Vec<(String, String)>,
    pub(crate) free_blocks_after: u32,
}

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

pub(crate) struct LiveLog {
    pub(crate) path: PathBuf,
    pub(crate) engine: LiveEngine,
    /// The first line unchanged.
    pub(crate) settings: Map<String, Value>,
    pub(crate) steps: Vec<(u64, LiveStep)>,
}

impl LiveLog {
    pub(crate) fn read(path: &Path) -> Result<Self, LogError> {
        let mut lines = JsonLines::open(path)?;
        match lines.next().transpose()? {
            Some(head) => Self::of_lines(&head, lines),
            None => Err(LogError::file(lines.path(), "the log is empty")),
        }
    }

    /// Reads the capture that begins with the line `head`.
    pub(crate) fn of_lines((number, head): &(u64, String), lines: JsonLines<'_>) -> Result<Self, LogError> {
        let path = lines.path().to_owned();
        let wrong = |number, problem| LogError::line(&path, number, problem);
        let settings: Map<String, Value> = from_text(head).map_err(|problem| wrong(*number, problem))?;
        if settings.get("kind").and_then(Value::as_str) != Some("engine") {
            let kind = settings.get("kind").unwrap_or(&Value::Null);
            return Err(wrong(*number, format!("invalid `kind`: expected \"engine\" in a step log, got {kind}")));
        }
        let mut engine: LiveEngine = from_text(head).map_err(|problem| wrong(*number, problem))?;
        engine.take_options().map_err(|problem| wrong(*number, problem))?;
        let mut steps = Vec::new();
        for line in lines {
            let (number, text) = line?;
            steps.push((number, from_text(&text).map_err(|problem| wrong(number, problem))?));
        }
        Ok(Self { path, engine, settings, steps })
    }

    /// Converts the steps to lines. Fields that a live capture lacks stay unset.
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
        enc: step.enc.clone(),
        tot: Some(step.total),
        pre: names(&step.preempted),
        flush: names(&step.finished),
        wait: Some(step.waiting),
        free: Some(step.free_blocks),
        u: Some(step.step),
        out: Some(step.emitted.iter().map(|(name, tokens)| (named(name), *tokens)).collect()),
        fin: step.stopped.iter().map(|(name, reason)| (named(name), reason.clone())).collect(),
        start_ms: step.t.first().and_then(|&begin| milliseconds(begin)),
        duration_ms: match step.t[..] {
            [begin, .., end] => milliseconds(end - begin),
            _ => None,
        },
        ..StepLine::default()
    }
}

/// None if the result is not finite, because JSON cannot represent it.
fn milliseconds(seconds: f64) -> Option<f64> {
    Some(seconds * 1e3).filter(|ms| ms.is_finite())
}

pub(crate) fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}
