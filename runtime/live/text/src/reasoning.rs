//! Reasoning formats: the delimiters around reasoning, by the names of vLLM's parsers.

use crate::{English, Tokenizer};

/// The position of an output relative to its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reasoning may start.
    Open,
    /// Reasoning has started. The remaining text of the start delimiter still has to be written.
    Reasoning(&'static str),
    /// Reasoning has ended. The remaining text of the end delimiter still has to be written.
    Answer(&'static str),
}

/// The delimiters around reasoning, and the white space around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    start: &'static str,
    end: &'static str,
    before_start: &'static str,
    after_start: &'static str,
    before_end: &'static str,
    after_end: &'static str,
}

/// A reasoning format, with its delimiters as tokens of one tokenizer.
#[derive(Clone, Debug)]
pub struct ReasoningForm {
    marks: Marks,
    start_id: u32,
    end_id: u32,
}

/// A reasoning format that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReasoningError {
    #[error("expected one of auto, none, {}", NAMES.map(|(name, _)| name).join(", "))]
    Unknown,
    #[error("the tokenizer is missing the reasoning delimiter token `{0}`")]
    MissingToken(&'static str),
}

const THINK: Marks =
    Marks { start: "<think>", end: "</think>", before_start: "", after_start: "", before_end: "", after_end: "" };
const R1: Marks = Marks { after_start: "\n", ..THINK };
const QWEN3: Marks = Marks { after_start: "\n", before_end: "\n", after_end: "\n\n", ..THINK };
const STEP: Marks = Marks { after_start: "\n", before_end: "\n", after_end: "\n", ..THINK };
const GLM45: Marks = Marks { before_start: "\n", after_end: "\n", ..THINK };
const SEED: Marks = Marks { start: "<seed:think>", end: "</seed:think>", after_end: "\n", ..THINK };
const KIMI: Marks = Marks { start: "◁think▷", end: "◁/think▷", ..THINK };
const MINIMAX_M3: Marks = Marks { start: "<mm:think>", end: "</mm:think>", ..THINK };
const COHERE: Marks = Marks { start: "<|START_THINKING|>", end: "<|END_THINKING|>", ..THINK };

/// vLLM's reasoning parsers.
const NAMES: [(&str, Marks); 18] = [
    ("cohere_cmd", COHERE),
    ("deepseek_r1", R1),
    ("deepseek_v3", THINK),
    ("deepseek_v4", THINK),
    ("deepseek_v41", THINK),
    ("glm45", GLM45),
    ("glm47", THINK),
    ("kimi", KIMI),
    ("kimi_k2", THINK),
    ("mimo", THINK),
    ("minimax_m2", QWEN3),
    ("minimax_m3", MINIMAX_M3),
    ("nemotron_v3", STEP),
    ("qwen3", QWEN3),
    ("seed_oss", SEED),
    ("step3", R1),
    ("step3p5", STEP),
    ("step5", THINK),
];

/// Parts of model names, each with its parser. The first match counts, as in vLLM.
const MODELS: [(&str, &str); 27] = [
    ("deepseek-r1", "deepseek_r1"),
    ("deepseek-v4.1", "deepseek_v41"),
    ("deepseek-v4", "deepseek_v4"),
    ("deepseek_v4", "deepseek_v4"),
    ("deepseek-v3", "deepseek_v3"),
    ("qwq", "deepseek_r1"),
    ("mimo-v2", "mimo"),
    ("qwen3", "qwen3"),
    ("glm-5", "glm47"),
    ("glm-4.7", "glm47"),
    ("glm-4.6", "glm45"),
    ("glm-4.5", "glm45"),
    ("kimi-k2", "kimi_k2"),
    ("kimi", "kimi"),
    ("step-3p5", "step3p5"),
    ("step3p5", "step3p5"),
    ("step-3.5", "step3p5"),
    ("step3", "step3"),
    ("step-5", "step5"),
    ("step5", "step5"),
    ("seed-oss", "seed_oss"),
    ("seedoss", "seed_oss"),
    ("minimax-m3", "minimax_m3"),
    ("minimax", "minimax_m2"),
    ("cohere", "cohere_cmd"),
    ("command", "cohere_cmd"),
    ("nemotron", "nemotron_v3"),
];

impl ReasoningForm {
    /// Looks up the format of one of vLLM's parsers.
    ///
    /// # Errors
    /// When no such parser exists, or the tokenizer lacks its delimiters.
    pub fn named(name: &str, tokenizer: &Tokenizer) -> Result<Self, ReasoningError> {
        let (_, marks) = NAMES.iter().find(|(known, _)| *known == name).ok_or(ReasoningError::Unknown)?;
        let id = |mark| tokenizer.token_id(mark).ok_or(ReasoningError::MissingToken(mark));
        Ok(Self { marks: *marks, start_id: id(marks.start)?, end_id: id(marks.end)? })
    }

    /// Returns the parser that vLLM picks for a model name.
    #[must_use]
    pub fn name_for(model: &str) -> Option<&'static str> {
        let model = model.to_lowercase();
        MODELS.iter().find(|(part, _)| model.contains(part)).map(|(_, name)| *name)
    }

    /// The token that starts reasoning.
    #[must_use]
    pub fn start_id(&self) -> u32 {
        self.start_id
    }

    /// The token that ends reasoning.
    #[must_use]
    pub fn end_id(&self) -> u32 {
        self.end_id
    }

    /// Text right before the start or end delimiter.
    #[must_use]
    pub fn before(&self, is_end: bool) -> &'static str {
        if is_end { self.marks.before_end } else { self.marks.before_start }
    }

    /// Text right after the start or end delimiter.
    #[must_use]
    pub fn after(&self, is_end: bool) -> &'static str {
        if is_end { self.marks.after_end } else { self.marks.after_start }
    }

    /// The phase in which a prompt leaves the output. The last delimiter decides, unless another special token
    /// follows it.
    #[must_use]
    pub fn phase(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> Phase {
        let is_mark = |token: &u32| *token == self.start_id || *token == self.end_id;
        let at = prompt.iter().rposition(|token| is_mark(token) || tokenizer.is_special(*token));
        let Some(at) = at.filter(|at| is_mark(&prompt[*at])) else { return Phase::Open };
        let is_end = prompt[at] == self.end_id;
        let tail = tokenizer.decode(&prompt[at + 1..], false);
        let rest = self.after(is_end).strip_prefix(tail.as_str()).unwrap_or("");
        if is_end { Phase::Answer(rest) } else { Phase::Reasoning(rest) }
    }

    /// Generates the reasoning before an answer: whole sentences if one fits, and at most `max_tokens` tokens. If
    /// the text between the delimiters exceeds `budget` tokens, the end delimiter follows at the budget, even
    /// within a sentence.
    #[must_use]
    pub fn write(
        &self,
        phase: Phase,
        tokenizer: &Tokenizer,
        english: &English,
        seed: u64,
        (max_tokens, budget): (usize, Option<usize>),
    ) -> Vec<u32> {
        let encoded = |text: &str| tokenizer.encode(text, false).unwrap_or_default();
        let (mut tokens, first) = match phase {
            Phase::Open => (vec![self.start_id], self.marks.after_start),
            Phase::Reasoning(rest) => (Vec::new(), rest),
            Phase::Answer(rest) => return encoded(rest),
        };
        let thought = thought(english, seed, max_tokens);
        let between = [encoded(first), thought, encoded(self.marks.before_end)].concat();
        tokens.extend(between.into_iter().take(budget.unwrap_or(usize::MAX)));
        tokens.push(self.end_id);
        tokens.extend(encoded(self.marks.after_end));
        tokens
    }
}

fn thought(english: &English, seed: u64, max_tokens: usize) -> Vec<u32> {
    // Use another seed than the answer does.
    let mut text = english.start(seed ^ 0x7265_6173_6f6e);
    let (mut tokens, mut whole) = (Vec::new(), 0);
    while tokens.len() < max_tokens && !text.is_over() {
        tokens.push(text.next_token(english));
        if text.is_between_sentences() {
            whole = tokens.len();
        }
    }
    if whole > 0 {
        tokens.truncate(whole);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_have_the_names_of_vllm() {
        let tokenizer = Tokenizer::builtin();
        let form = ReasoningForm::named("qwen3", &tokenizer).expect("it has the marks");
        assert_eq!((form.start_id(), form.end_id()), (266, 267));
        let error = ReasoningForm::named("think", &tokenizer).expect_err("there is none").to_string();
        assert!(error.starts_with("expected one of auto, none, cohere_cmd, deepseek_r1,"), "{error}");
        let error = ReasoningForm::named("kimi", &tokenizer).expect_err("it has other marks");
        assert_eq!(error.to_string(), "the tokenizer is missing the reasoning delimiter token `◁think▷`");
        assert_eq!(ReasoningForm::name_for("Qwen/Qwen3-0.6B"), Some("qwen3"));
        assert_eq!(ReasoningForm::name_for("sim"), None);
        for (_, name) in MODELS {
            assert!(NAMES.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn the_prompt_decides_whether_there_is_reasoning() {
        let tokenizer = Tokenizer::builtin();
        let english = English::new(&tokenizer);
        let form = ReasoningForm::named("qwen3", &tokenizer).expect("it has the marks");
        let phase = |prompt: &str| form.phase(&tokenizer, &tokenizer.encode(prompt, false).expect("it has tokens"));
        let write = |phase| tokenizer.decode(&form.write(phase, &tokenizer, &english, 1, (30, None)), false);
        assert_eq!(phase("<think>no</think><|im_start|>assistant\n"), Phase::Open);
        assert_eq!(phase("<|im_start|>assistant\n<think>"), Phase::Reasoning("\n"));
        assert_eq!(phase("<think>\n\n</think>\n\n"), Phase::Answer(""));
        assert_eq!(write(Phase::Answer("")), "");
        let text = write(Phase::Open);
        let inner = text.strip_prefix("<think>\n").and_then(|text| text.strip_suffix("\n</think>\n\n"));
        assert!(inner.is_some_and(|inner| inner.ends_with('.')), "{text}");
        assert_eq!(write(Phase::Reasoning("\n")), text["<think>".len()..]);
    }
}
