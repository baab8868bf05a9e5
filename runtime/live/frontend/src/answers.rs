//! Reads files of canned answers and conversation data sets.

use serde::Deserialize;
use vcr_live::{PromptDigest, TokenList};
use vcr_text::{TemplateRequest, Value};

use crate::server::chats::ChatOptions;
use crate::server::model::Model;

/// One row of a file: an answer, and the prompt or key that it belongs to.
#[derive(Deserialize)]
struct Row {
    answer: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    /// The messages, in ShareGPT's format.
    conversations: Option<Vec<Turn>>,
    /// In llm-d-inference-sim's format: the SHA-256 of the prompt's tokens, in hexadecimal digits.
    prompt_hash: Option<String>,
    /// The answer to the prompt with this hash.
    gen_tokens: Option<Generated>,
}

/// The tokens of an answer: their texts, and their ids unless an old tool wrote the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Generated {
    Texts(Vec<String>),
    Tokens { strings: Vec<String>, numbers: Vec<u32> },
}

#[derive(Deserialize)]
struct Turn {
    from: String,
    value: String,
}

/// Collects answers as tokens of a model.
struct Answers<'a> {
    model: &'a Model,
    chats: &'a ChatOptions,
    now_s: Option<i64>,
    list: TokenList,
}

/// Parses the answers in a file. Returns none if its lines contain tokens. Chats are rendered at the time `now_s`,
/// in seconds since 1970.
///
/// # Errors
/// The line or row that is invalid.
pub fn parse(text: &str, model: &Model, chats: &ChatOptions, now_s: Option<i64>) -> Result<Option<TokenList>, String> {
    let Some(rows) = rows(text)? else { return Ok(None) };
    let mut answers = Answers { model, chats, now_s, list: TokenList::default() };
    for (number, row) in rows.into_iter().enumerate() {
        answers.add(row).map_err(|problem| format!("row {}: {problem}", number + 1))?;
    }
    if answers.list.in_turn.is_empty() {
        return Err("it has no answers".to_owned());
    }
    Ok(Some(answers.list))
}

/// Reads the rows of a JSON list or of JSON lines. Returns none if they contain tokens.
fn rows(text: &str) -> Result<Option<Vec<Row>>, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map(Some).map_err(|error| error.to_string());
    }
    let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let is_tokens = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).is_ok_and(|row| row.get("output_token_ids").is_some())
    };
    if lines().next().is_some_and(|(_, line)| is_tokens(line)) {
        return Ok(None);
    }
    let row = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))
    };
    lines().map(row).collect::<Result<_, String>>().map(Some)
}

impl Answers<'_> {
    fn add(&mut self, row: Row) -> Result<(), String> {
        match row {
            Row { answer: Some(answer), prompt: Some(prompt), .. } => {
                self.insert(Some(self.encode(&prompt, true)?), &answer)
            }
            Row { answer: Some(answer), messages: Some(messages), .. } => {
                self.insert(Some(self.chat(&messages)?), &answer)
            }
            Row { answer: Some(answer), .. } => self.insert(None, &answer),
            Row { messages: Some(messages), .. } => self.conversation(&messages),
            Row { conversations: Some(turns), .. } => {
                let messages: Vec<Value> = turns.iter().map(Turn::message).collect();
                self.conversation(&messages)
            }
            Row { prompt_hash: Some(hash), gen_tokens: Some(generated), .. } => self.hashed(&hash, generated),
            _ => Err("expected `answer`, `messages`, `conversations`, or `prompt_hash` and `gen_tokens`".to_owned()),
        }
    }

    /// Adds an answer to the prompt with this hash. If a prompt has several answers, the first counts.
    fn hashed(&mut self, hash: &str, generated: Generated) -> Result<(), String> {
        let digest = digest(hash).ok_or("invalid `prompt_hash`: expected 64 hexadecimal digits")?;
        let (text, numbers) = match generated {
            Generated::Texts(strings) => (strings.concat(), Vec::new()),
            Generated::Tokens { strings, numbers } => (strings.concat(), numbers),
        };
        // Ids of another vocabulary decode to other texts.
        let are_own = !numbers.is_empty() && self.model.tokenizer.decode(&numbers, false) == text;
        let tokens = if are_own { numbers } else { self.encode(&text, false)? };
        self.list.by_digest.entry(digest).or_insert(self.list.in_turn.len());
        self.push(tokens)
    }

    /// Adds each message of the assistant as an answer to the messages before it.
    fn conversation(&mut self, messages: &[Value]) -> Result<(), String> {
        let text = |message: &Value, name: &str| {
            let value = message.get_attr(name).ok()?;
            value.as_str().map(str::to_owned)
        };
        for (index, message) in messages.iter().enumerate().skip(1) {
            if text(message, "role").as_deref() == Some("assistant")
                && let Some(answer) = text(message, "content")
            {
                self.insert(Some(self.chat(&messages[..index])?), &answer)?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, prompt: Option<Vec<u32>>, answer: &str) -> Result<(), String> {
        let tokens = self.encode(answer, false)?;
        if let Some(prompt) = prompt {
            self.list.by_prompt.entry(prompt).or_insert_with(|| tokens.clone());
        }
        self.push(tokens)
    }

    /// Adds an answer. Prompts without their own answer can get any answer.
    fn push(&mut self, tokens: Vec<u32>) -> Result<(), String> {
        if tokens.is_empty() {
            return Err("an answer is empty; every request gets at least one token".to_owned());
        }
        self.list.in_turn.push(tokens);
        Ok(())
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.model.tokenizer.encode(text, add_special).map_err(|error| error.to_string())
    }

    fn chat(&self, messages: &[Value]) -> Result<Vec<u32>, String> {
        let template = self.model.template.as_ref().ok_or("the model has no chat template")?;
        let request = TemplateRequest {
            messages: messages.iter().cloned().collect(),
            add_generation_prompt: true,
            kwargs: self.chats.template_kwargs.clone(),
            now_s: self.now_s,
            ..TemplateRequest::default()
        };
        let text = template.render_chat(&request).map_err(|error| error.to_string())?;
        self.encode(&text, false)
    }
}

/// Decodes the hexadecimal digits of a digest.
fn digest(digits: &str) -> Option<PromptDigest> {
    let pairs: Option<Vec<&str>> = (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2)).collect();
    let is_digit = |byte: u8| byte.is_ascii_hexdigit();
    let bytes: Option<Vec<u8>> = pairs?
        .into_iter()
        .map(|pair| pair.bytes().all(is_digit).then(|| u8::from_str_radix(pair, 16).ok()).flatten())
        .collect();
    PromptDigest::try_from(bytes?).ok()
}

impl Turn {
    fn message(&self) -> Value {
        let role = match self.from.as_str() {
            "human" | "user" => "user",
            "gpt" | "assistant" | "chatgpt" | "bing" | "bard" => "assistant",
            other => other,
        };
        Value::from_pairs([("role", Value::from(role)), ("content", Value::from(self.value.as_str()))])
    }
}

#[cfg(test)]
mod tests {
    use vcr_live::prompt_digest;

    use super::*;

    fn read(text: &str) -> Result<Option<TokenList>, String> {
        parse(text, &Model::builtin(), &ChatOptions::default(), None)
    }

    #[test]
    fn each_form_has_its_answers() {
        let counts = |text: &str| {
            let list = read(text).expect("it is valid").expect("it has texts");
            (list.in_turn.len(), list.by_prompt.len())
        };
        assert_eq!(counts("{\"answer\": \"a\"}\n\n{\"answer\": \"a\", \"prompt\": \"b\"}"), (2, 1));
        let turns = r#"{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}"#;
        assert_eq!(counts(&format!("[{{\"messages\": [{turns}, {turns}]}}]")), (2, 2));
        assert_eq!(counts(&format!("[{{\"messages\": [{turns}], \"answer\": \"c\"}}]")), (1, 1));
        let share = r#"[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]"#;
        assert_eq!(counts(share), (1, 1));
        assert!(matches!(read(r#"{"output_token_ids": [1]}"#), Ok(None)), "they are tokens");
    }

    /// A row for the prompt with these tokens.
    fn hashed(prompt: &[u32], generated: serde_json::Value) -> String {
        let digits: String = prompt_digest(prompt).iter().map(|byte| format!("{byte:02x}")).collect();
        serde_json::json!({"prompt_hash": digits, "gen_tokens": generated}).to_string()
    }

    #[test]
    fn answers_belong_to_the_digests_of_prompts() {
        let model = Model::builtin();
        let encode = |text: &str| model.tokenizer.encode(text, false).expect("tokens");
        // These single-letter tokens differ from the tokenizer's result, which joins them.
        let letters: Vec<u32> = ["o", "w", "l"].iter().flat_map(|letter| encode(letter)).collect();
        assert_ne!(letters, encode("owl"));
        let foreign = serde_json::json!({"strings": ["An", " owl", "."], "numbers": [900_001, 900_002, 13]});
        let own = serde_json::json!({"strings": ["o", "w", "l"], "numbers": letters});
        let rows = [
            hashed(&[1, 2, 3], foreign),
            hashed(&[4], serde_json::json!(["Two", " owls."])),
            hashed(&[4], serde_json::json!(["Three", " owls."])),
            hashed(&[5], own),
        ];
        let list = read(&rows.join("\n")).expect("it is valid").expect("it has texts");
        let place = |prompt: &[u32]| list.by_digest.get(&prompt_digest(prompt)).copied();
        assert_eq!((place(&[1, 2, 3]), place(&[4]), place(&[5]), place(&[6])), (Some(0), Some(1), Some(3), None));
        // For ids of another vocabulary and for old rows without ids, the text counts.
        assert_eq!(list.in_turn[..2], [encode("An owl."), encode("Two owls.")]);
        assert_eq!(list.in_turn[3], letters);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("", "it has no answers"),
            ("[]", "it has no answers"),
            ("{\"answer\": \"a\"}\n{", "line 2: "),
            ("[{]", "key must be a string"),
            ("{}", "row 1: expected `answer`, `messages`, `conversations`, or `prompt_hash` and `gen_tokens`"),
            ("{\"answer\": \"a\"}\n{\"answer\": \"\"}", "row 2: an answer is empty"),
            (r#"{"messages": [1], "answer": "a"}"#, "row 1: invalid message"),
            (r#"{"prompt_hash": "00", "gen_tokens": ["a"]}"#, "row 1: invalid `prompt_hash`: expected 64"),
            (r#"{"prompt_hash": "é", "gen_tokens": ["a"]}"#, "row 1: invalid `prompt_hash`: expected 64"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(wanted), "{error}");
        }
    }
}
