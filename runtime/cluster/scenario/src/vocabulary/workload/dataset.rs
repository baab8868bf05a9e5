//! `dataset`: conversations from a file. Their lengths are used, and on request also their content.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use vcr_cluster::Conversations;

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::Options;
use crate::tokens::Tokenize;

/// Maximum size of a data set, because it is read into memory as a whole.
const MAX_BYTES: u64 = 1 << 30;

/// Default number of characters per token, which suits English.
const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// A conversation: the number of new prompt tokens and output tokens of each turn, and the prompt tokens themselves
/// if they are kept.
#[derive(Debug, Default, PartialEq)]
struct Dialogue {
    turns: Vec<(u32, u32)>,
    prompts: Vec<Vec<u32>>,
}

impl Dialogue {
    fn push(&mut self, prompt: TextTokens, answer: &TextTokens) {
        self.turns.push((prompt.count.max(1), answer.count.max(1)));
        self.prompts.push(prompt.tokens);
    }
}

/// The tokens of a text: their number, and the tokens themselves if they are kept.
#[derive(Debug, Default)]
struct TextTokens {
    count: u32,
    tokens: Vec<u32>,
}

impl TextTokens {
    fn join(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.tokens.extend(other.tokens);
    }
}

/// The method of counting the tokens of texts.
enum Counting {
    /// By this number of characters per token.
    Characters(f64),
    /// By a tokenizer. Its tokens are kept or only counted.
    Tokens { tokenize: Box<Tokenize>, keeps: bool },
}

impl Counting {
    fn count(&mut self, text: &str) -> Result<TextTokens, String> {
        match self {
            Self::Characters(of_token) => {
                Ok(TextTokens { count: (text.chars().count() as f64 / *of_token).round() as u32, tokens: Vec::new() })
            }
            Self::Tokens { tokenize, keeps } => {
                let tokens = tokenize(text)?;
                Ok(TextTokens { count: tokens.len() as u32, tokens: if *keeps { tokens } else { Vec::new() } })
            }
        }
    }
}

/// Roles of messages that come from the model.
const MODEL_ROLES: &[&str] = &["assistant", "gpt", "chatgpt", "bing", "bard", "model"];

pub(super) fn make(context: &Context, mut options: Options<'_>) -> Scripted<Arc<Conversations>> {
    let path = options.string("path");
    let path = options.required("path", path);
    let characters = options.f64("characters_per_token");
    let tokenizer = options.string("tokenizer");
    let in_order = options.choice("order", &[("random", false), ("file", true)]).unwrap_or(false);
    let most = options.u64("limit").unwrap_or(u64::MAX);
    let keeps = options.boolean("content").unwrap_or(false);
    if keeps && tokenizer.is_none() {
        options.problem("content", "`content` needs `tokenizer`, the folder of the model whose tokens prompts have");
    }
    if characters.is_some() && tokenizer.is_some() {
        options.problem("tokenizer", "`tokenizer` counts tokens and `characters_per_token` estimates them; give one");
    }
    let characters_per_token = characters.unwrap_or(CHARACTERS_PER_TOKEN);
    if !(characters_per_token.is_finite() && characters_per_token > 0.0) {
        options.problem("characters_per_token", "invalid `characters_per_token`: expected a finite number above 0");
    }
    let call = options.call_position();
    options.finish()?;
    let resolved = context.resolve(&path);
    context.reads(&resolved).map_err(|thrown| thrown.at(call))?;
    context.state().inputs.named("dataset", &path, resolved.clone());
    let wrong = |text: String| Thrown::input(text).at(call);
    let mut counting = match &tokenizer {
        None => Counting::Characters(characters_per_token),
        Some(folder) => {
            let folder = context.resolve(folder);
            let Some(open) = &context.options.tokenizers else {
                let hint = "leave `tokenizer` out to estimate lengths by `characters_per_token`";
                return Err(Thrown::input("this build of vcr has no tokenizers").hint(hint).at(call));
            };
            let tokenize = open.open(&folder).map_err(|text| wrong(format!("`tokenizer`: {text}")))?;
            Counting::Tokens { tokenize, keeps }
        }
    };
    let (conversations, skipped) =
        read(&resolved, most, &mut counting).map_err(|text| wrong(format!("`{}`: {text}", resolved.display())))?;
    if skipped > 0 {
        context.reporter.warn(&format!("{path}: {skipped} conversations without an answer are left out"));
    }
    let (turns, prompts) = conversations.into_iter().map(|dialogue| (dialogue.turns, dialogue.prompts)).unzip();
    Ok(Arc::new(Conversations { turns, prompts: if keeps { prompts } else { Vec::new() }, in_order }))
}

/// Reads the conversations of a file. Also returns the number of conversations without turns.
fn read(path: &Path, most: u64, counting: &mut Counting) -> Result<(Vec<Dialogue>, u64), String> {
    let text = vcr_base::input::read_text(path, MAX_BYTES).map_err(|error| format!("cannot be read: {error}"))?;
    let mut read = Vec::new();
    let mut skipped = 0;
    let mut take = |record: Record| -> Result<bool, String> {
        let dialogue = record.dialogue(counting)?;
        if dialogue.turns.is_empty() {
            skipped += 1;
        } else {
            read.push(dialogue);
        }
        Ok((read.len() as u64) < most)
    };
    if text.trim_start().starts_with('[') {
        let records: Vec<Record> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        for (index, record) in records.into_iter().enumerate() {
            if !take(record).map_err(|error| format!("conversation {}: {error}", index + 1))? {
                break;
            }
        }
    } else {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at_line = |error: String| format!("line {}: {error}", index + 1);
            let record = serde_json::from_str(line).map_err(|error| at_line(error.to_string()))?;
            if !take(record).map_err(at_line)? {
                break;
            }
        }
    }
    if read.is_empty() {
        return Err("it has no conversation with a prompt and an answer".to_owned());
    }
    Ok((read, skipped))
}

/// A conversation in any of the supported formats.
#[derive(Deserialize)]
struct Record {
    #[serde(alias = "messages")]
    conversations: Option<Vec<Message>>,
    #[serde(alias = "question", alias = "instruction")]
    prompt: Option<Content>,
    #[serde(alias = "response", alias = "output", alias = "answer")]
    completion: Option<Content>,
    #[serde(alias = "input_length", alias = "input_tokens")]
    prompt_tokens: Option<u32>,
    #[serde(alias = "output_length")]
    output_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value")]
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

impl Content {
    fn tokens(&self, counting: &mut Counting) -> Result<TextTokens, String> {
        match self {
            Self::Text(text) => counting.count(text),
            Self::Parts(parts) => {
                let mut all = TextTokens::default();
                for part in parts {
                    all.join(counting.count(&part.text)?);
                }
                Ok(all)
            }
        }
    }
}

impl Record {
    /// The turns of the conversation. Each consists of the prompt before an answer, and the answer.
    fn dialogue(&self, counting: &mut Counting) -> Result<Dialogue, String> {
        let mut dialogue = Dialogue::default();
        if let (Some(prompt), Some(output)) = (self.prompt_tokens, self.output_tokens) {
            let of_length = |count: u32| TextTokens { count, tokens: Vec::new() };
            dialogue.push(of_length(prompt), &of_length(output));
            return Ok(dialogue);
        }
        if let (Some(prompt), Some(completion)) = (&self.prompt, &self.completion) {
            dialogue.push(prompt.tokens(counting)?, &completion.tokens(counting)?);
            return Ok(dialogue);
        }
        let Some(messages) = &self.conversations else {
            return Err("expected `conversations`, `messages`, `prompt` with `completion`, or lengths".to_owned());
        };
        let mut before: Option<TextTokens> = None;
        for message in messages {
            let content = message.content.as_ref();
            let said = content.map_or(Ok(TextTokens::default()), |content| content.tokens(counting))?;
            if !MODEL_ROLES.contains(&message.role.as_str()) {
                before.get_or_insert_default().join(said);
            } else if let Some(before) = before.take() {
                dialogue.push(before, &said);
            }
        }
        Ok(dialogue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of prompt tokens and output tokens of each turn.
    type Turns = Vec<(u32, u32)>;

    fn parsed(text: &str, most: u64) -> Result<(Vec<Turns>, u64), String> {
        let (read, skipped) = parsed_by(&mut Counting::Characters(1.0), text, most)?;
        Ok((read.into_iter().map(|dialogue| dialogue.turns).collect(), skipped))
    }

    fn parsed_by(counting: &mut Counting, text: &str, most: u64) -> Result<(Vec<Dialogue>, u64), String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        std::fs::write(&path, text).expect("it is writable");
        read(&path, most, counting)
    }

    #[test]
    fn tokens_of_prompts_are_kept_where_they_are_asked_for() {
        let text = r#"{"messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": [{"text": "c"}]},
            {"role": "assistant", "content": "xyz"}, {"role": "user", "content": ""}, {"role": "assistant", "content": "w"}]}"#
            .replace('\n', " ");
        let bytes = |text: &str| -> Result<Vec<u32>, String> { Ok(text.bytes().map(u32::from).collect()) };
        for (keeps, prompts) in [(true, vec![vec![97, 98, 99], vec![]]), (false, vec![vec![], vec![]])] {
            let mut counting = Counting::Tokens { tokenize: Box::new(bytes), keeps };
            let read = parsed_by(&mut counting, &text, 9);
            assert_eq!(read, Ok((vec![Dialogue { turns: vec![(3, 3), (1, 1)], prompts }], 0)));
        }
    }

    #[test]
    fn share_gpt_and_lines_of_messages_are_read() {
        let share_gpt = r#"[
            {"id": "a", "conversations": [{"from": "human", "value": "12345"}, {"from": "gpt", "value": "123"},
                {"from": "human", "value": "1"}, {"from": "gpt", "value": ""}]},
            {"id": "b", "conversations": [{"from": "gpt", "value": "hello"}]}]"#;
        assert_eq!(parsed(share_gpt, 9), Ok((vec![vec![(5, 3), (1, 1)]], 1)));
        let lines = concat!(
            r#"{"messages": [{"role": "system", "content": "123"}, {"role": "user", "content": [{"type": "text", "text": "45"}]}, {"role": "assistant", "content": "6789"}]}"#,
            "\n\n",
            r#"{"prompt": "12", "completion": "3"}"#,
            "\n",
            r#"{"input_length": 700, "output_length": 30}"#
        );
        assert_eq!(parsed(lines, 9), Ok((vec![vec![(5, 4)], vec![(2, 1)], vec![(700, 30)]], 0)));
        assert_eq!(parsed(lines, 1).map(|(read, _)| read.len()), Ok(1));
    }

    #[test]
    fn what_is_no_conversation_is_named_with_its_place() {
        let error = |text| parsed(text, 9).unwrap_err();
        assert!(error("{\"a\": 1}").starts_with("line 1: expected `conversations`"));
        assert!(error("[{\"a\": 1}]").starts_with("conversation 1: expected `conversations`"));
        assert!(error("{\"prompt\": \"a\", \"completion\": \"b\"}\n{").starts_with("line 2: "));
        assert_eq!(error("[]"), "it has no conversation with a prompt and an answer");
    }
}
