//! The load of a plan: its parts and properties.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vcr_base::percentile::at_share;
use vcr_scenario::{Reporter, RunOptions, Scenario, Silent};

use crate::plan::args::QuestionArgs;
use crate::plan::halt::Halt;
use crate::refusal::Refusal;

/// Duration of a drawn load in seconds, if the user gives no number of requests.
const DRAWN_S: f64 = 300.0;
/// Minimum and maximum number of requests of a drawn load.
const DRAWN_REQUESTS: (f64, f64) = (500.0, 20_000.0);
/// Sizes of the parts as shares of the load; the last is the whole.
const SHARES: [f64; 3] = [1.0 / 16.0, 0.25, 1.0];
/// Minimum size of a part: percentiles of fewer requests are unreliable.
const LEAST_REQUESTS: u64 = 150;
/// A part must be smaller than this share of the next part to be worthwhile.
const WORTH: f64 = 0.6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Load {
    /// The requests of a trace, a capture or a report.
    Trace { path: PathBuf, requests: Option<u32> },
    /// Drawn requests. Lengths are from a file of conversations, or are options of `poisson(...)`.
    Drawn { rate_per_s: f64, dataset: Option<PathBuf>, lengths: Option<String>, requests: u32 },
}

/// Properties of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) requests: u64,
    /// Time between the first and last arrival.
    pub(crate) span_s: f64,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Prompt and output tokens of the longest request.
    pub(crate) longest_tokens: u64,
    /// Share of prompt tokens that an engine with ample memory finds in its prefix cache.
    pub(crate) shared_prompts: f64,
    /// Prompt lengths in ascending order.
    #[serde(skip)]
    pub(crate) prompts: Vec<f64>,
    /// Prompt plus output tokens of each request.
    #[serde(skip)]
    pub(crate) lengths: Vec<u64>,
}

/// A part of a load, possibly accelerated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cut {
    /// Number of leading requests; none for all.
    pub(crate) requests: Option<u64>,
    /// Factor on the arrival rate.
    pub(crate) factor: f64,
}

impl Cut {
    pub(crate) const WHOLE: Self = Self { requests: None, factor: 1.0 };
}

impl Load {
    pub(crate) fn of(question: &QuestionArgs) -> Result<Self, Refusal> {
        let requests = question.requests.map(std::num::NonZeroU32::get);
        if let Some(path) = &question.trace {
            let path = match vcr_base::input::remote::url(path) {
                Some(_) => crate::values::input(path).map_err(Refusal::input)?,
                None => absolute(path)?,
            };
            return Ok(Self::Trace { path, requests });
        }
        let Some(rate) = &question.rate else {
            return Err(Refusal::input("no load: expected --trace, or --rate with lengths of prompts and outputs"));
        };
        let per_s = if rate.contains('/') {
            vcr_base::units::rate_per_s(rate).map_err(|error| error.to_string())
        } else {
            rate.parse().map_err(|_| format!("`{rate}`: expected a number of requests per second, such as 12"))
        };
        let rate_per_s: f64 = per_s.map_err(|error| Refusal::input(format!("invalid --rate: {error}")))?;
        if !(rate_per_s > 0.0 && rate_per_s <= 1e6) {
            return Err(Refusal::input(format!("invalid --rate {rate}: expected more than 0 and at most 1000000")));
        }
        let (dataset, lengths) = match (&question.dataset, &question.prompt_tokens, &question.output_tokens) {
            (Some(path), ..) => (Some(absolute(path)?), None),
            (None, Some(prompts), Some(outputs)) => {
                check_lengths("prompt_tokens", prompts)?;
                check_lengths("output_tokens", outputs)?;
                (None, Some(format!("prompt_tokens: {prompts}, output_tokens: {outputs}")))
            }
            _ => {
                return Err(Refusal::input("no lengths: expected --prompt-tokens and --output-tokens, or --dataset"));
            }
        };
        let (least, most) = DRAWN_REQUESTS;
        let usual = (rate_per_s * DRAWN_S).clamp(least, most) as u32;
        Ok(Self::Drawn { rate_per_s, dataset, lengths, requests: requests.unwrap_or(usual) })
    }

    /// The workload expression for a scenario.
    pub(crate) fn expression(&self, cut: Cut) -> Result<String, Refusal> {
        Ok(match self {
            Self::Trace { path, requests } => {
                let mut text = format!("trace(#{{ path: \"{}\"", quoted(path)?);
                let requests = cut.requests.or(requests.map(u64::from));
                if let Some(requests) = requests {
                    text.push_str(&format!(", requests: {requests}"));
                }
                if cut.factor != 1.0 {
                    text.push_str(&format!(", speedup: {:?}", cut.factor));
                }
                text.push_str(" })");
                text
            }
            Self::Drawn { rate_per_s, dataset, lengths, requests } => {
                let options = match (dataset, lengths) {
                    (Some(path), _) => format!("dataset: dataset(#{{ path: \"{}\" }})", quoted(path)?),
                    (None, lengths) => lengths.clone().unwrap_or_default(),
                };
                let requests = cut.requests.unwrap_or(u64::from(*requests));
                let rate = rate_per_s * cut.factor;
                format!("poisson(#{{ name: \"load\", rate: {rate:?}, count: {requests}, {options} }})")
            }
        })
    }

    /// The file of the load, if any.
    pub(crate) fn file_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Trace { path, .. } => Some(path),
            Self::Drawn { dataset, .. } => dataset.as_mut(),
        }
    }

    /// Limits the load to its first `most` requests.
    pub(crate) fn leading(&mut self, most: u32) {
        match self {
            Self::Trace { requests, .. } => *requests = Some(requests.map_or(most, |known| known.min(most))),
            Self::Drawn { requests, .. } => *requests = most.min(*requests),
        }
    }

    /// Determines the properties by a run on a fast engine with ample memory.
    pub(crate) fn facts(
        &self,
        seed: u64,
        base: &Scenario,
        path: &Path,
        reporter: Arc<dyn Reporter>,
    ) -> Result<Facts, Halt> {
        let workload = self.expression(Cut::WHOLE)?;
        let text = format!(
            "let engine = engine(#{{ num_gpu_blocks: 262_144, max_num_seqs: 4096, max_num_batched_tokens: 65_536 }});\n\
             run(#{{ cluster: cluster(#{{ engines: pool(#{{ engine: engine, latency: fixed(#{{ step: \"1ms\" }}) }}) }}), \
             workloads: [{workload}], seed: {seed} }});\n"
        );
        let options = RunOptions { tokenizers: crate::run::tokenizers(), ..RunOptions::default() };
        let scenario = Scenario::compile(path, text).map_err(of_load)?.sharing(base);
        let outcome = scenario.run(options, reporter).map_err(of_load)?;
        if outcome.partial.is_some() {
            return Err(Halt::Over);
        }
        let Some(run) = outcome.runs.first() else { return Err(Refusal::input("the load has no requests").into()) };
        let mut facts = Facts {
            requests: 0,
            span_s: 0.0,
            prompt_tokens: 0,
            output_tokens: 0,
            longest_tokens: 0,
            shared_prompts: 0.0,
            prompts: Vec::new(),
            lengths: Vec::new(),
        };
        let (mut first_ms, mut last_ms, mut cached) = (f64::INFINITY, 0.0_f64, 0_u64);
        for row in run.request_rows() {
            let (prompt, output) = (u64::from(row.prompt_tokens), u64::from(row.max_tokens));
            facts.requests += 1;
            facts.prompt_tokens += prompt;
            facts.output_tokens += output;
            facts.longest_tokens = facts.longest_tokens.max(prompt + output);
            facts.prompts.push(prompt as f64);
            facts.lengths.push(prompt + output);
            cached += u64::from(row.cached_tokens);
            first_ms = first_ms.min(row.arrival_ms);
            last_ms = last_ms.max(row.arrival_ms);
        }
        if facts.requests == 0 || facts.output_tokens == 0 {
            return Err(Refusal::input("the load has no requests with output: expected one at least").into());
        }
        facts.prompts.sort_unstable_by(f64::total_cmp);
        facts.span_s = (last_ms - first_ms) / 1e3;
        facts.shared_prompts = cached as f64 / facts.prompt_tokens.max(1) as f64;
        Ok(facts)
    }
}

impl Facts {
    /// The prompt length at this share of the ascending lengths.
    pub(crate) fn prompt_at(&self, share: f64) -> u64 {
        at_share(&self.prompts, share).unwrap_or(1.0).max(1.0) as u64
    }

    /// Number of leading requests of each part; the last part is the whole, which is none.
    pub(crate) fn parts(&self) -> Vec<Option<u64>> {
        let mut parts: Vec<Option<u64>> = vec![None];
        let mut next = self.requests as f64;
        for share in SHARES.iter().rev().skip(1) {
            let requests = ((self.requests as f64 * share).ceil() as u64).max(LEAST_REQUESTS);
            if (requests as f64) < next * WORTH {
                parts.insert(0, Some(requests));
                next = requests as f64;
            }
        }
        parts
    }

    /// The longest sequence that engines must support, rounded up.
    pub(crate) fn max_model_len(&self) -> u32 {
        u32::try_from((self.longest_tokens + 1).next_multiple_of(1024)).unwrap_or(u32::MAX)
    }

    /// Checks that no request is longer than the engines' longest sequence.
    pub(crate) fn check_fits(&self, max_model_len: u32) -> Result<(), Refusal> {
        let longer = self.lengths.iter().filter(|tokens| **tokens > u64::from(max_model_len)).count();
        if longer == 0 {
            return Ok(());
        }
        let refusal = Refusal::input(format!(
            "invalid --max-model-len {max_model_len}: {longer} of {} requests of the load are longer, with their output; \
             the longest has {} tokens",
            self.requests, self.longest_tokens
        ));
        Err(refusal.hint(format!("write --max-model-len {}, or leave it out", self.longest_tokens)))
    }

    pub(crate) fn text(&self) -> String {
        let per = |tokens: u64| tokens as f64 / self.requests as f64;
        format!(
            "{} requests in {}, prompts of {:.0} tokens and outputs of {:.0} on average",
            self.requests,
            vcr_base::units::format_ns(self.span_s * 1e9),
            per(self.prompt_tokens),
            per(self.output_tokens)
        )
    }
}

/// Rewrites an error of the generated script, which the user did not write.
fn of_load(error: vcr_scenario::ScenarioError) -> Refusal {
    let refusal = Refusal::input(format!("invalid load: {}", error.message));
    match error.hint {
        Some(hint) => refusal.hint(hint),
        None => refusal,
    }
}

/// Checks the lengths given for an option, named as in scenarios.
fn check_lengths(name: &str, text: &str) -> Result<(), Refusal> {
    let invalid = |reason: &str| {
        let option = name.replace('_', "-");
        let refusal = Refusal::input(format!("invalid --{option} `{text}`: {reason}"));
        refusal.hint("write a number, or a distribution of scenarios such as lognormal(2000, 1500)")
    };
    if text.contains(['"', ';', '}', '\n', '/']) {
        return Err(invalid("expected tokens"));
    }
    let other = if name == "prompt_tokens" { "output_tokens" } else { "prompt_tokens" };
    let script = format!("burst(#{{ count: 1, {other}: 1, {name}: {text} }});");
    let checked = Scenario::compile(Path::new("plan"), script)
        .and_then(|scenario| scenario.check(RunOptions::default(), Arc::new(Silent)));
    checked.map(|_| ()).map_err(|error| invalid(&error.message))
}

/// The absolute path, for scripts in other folders.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Refusal> {
    std::fs::canonicalize(path).map_err(|error| Refusal::input(format!("cannot read `{}`: {error}", path.display())))
}

/// The path, escaped for a string literal in a script.
pub(crate) fn quoted(path: &Path) -> Result<String, Refusal> {
    match path.to_str() {
        Some(text) => Ok(text.replace('\\', "\\\\").replace('"', "\\\"")),
        None => Err(Refusal::input(format!("invalid path `{}`: expected a text", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(requests: u64) -> Facts {
        Facts {
            requests,
            span_s: 1.0,
            prompt_tokens: 1,
            output_tokens: 1,
            longest_tokens: 5_000,
            shared_prompts: 0.0,
            prompts: vec![1.0, 2.0, 3.0, 4.0, 5.0],
            lengths: vec![100, 3_000, 5_000],
        }
    }

    #[test]
    fn parts_are_long_enough_and_worth_their_time() {
        assert_eq!(facts(16_000).parts(), [Some(1_000), Some(4_000), None]);
        assert_eq!(facts(1_600).parts(), [Some(150), Some(400), None]);
        assert_eq!(facts(300).parts(), [Some(150), None]);
        assert_eq!(facts(200).parts(), [None]);
    }

    #[test]
    fn the_longest_sequence_is_rounded_up() {
        assert_eq!(facts(1).max_model_len(), 5_120);
        assert_eq!(facts(1).prompt_at(1.0), 5);
        assert!(facts(3).check_fits(5_000).is_ok());
        let refusal = facts(3).check_fits(2_000).expect_err("two are longer");
        assert!(refusal.message.contains("2000: 2 of 3 requests"), "{}", refusal.message);
    }

    #[test]
    fn lengths_are_those_of_scenarios() {
        for right in ["300", "lognormal(2000, 1500)", "uniform(1, 9)", "histogram([[512, 40], [1024, 60]])"] {
            assert!(check_lengths("prompt_tokens", right).is_ok(), "{right}");
        }
        for wrong in ["", "many", "lognormal(1)", "1 }); crash(#{", "\"5\"", "lognormal(\"1s\", \"2s\")"] {
            let refusal = check_lengths("prompt_tokens", wrong).expect_err("not a length");
            assert!(refusal.message.starts_with("invalid --prompt-tokens"), "{}", refusal.message);
        }
    }
}
