//! Output of a simulated model: English or a structured output, with reasoning before it if the model reasons.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use vcr_base::random::{Distribution, Stream};
use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant};
use vcr_structured::{ArgumentSettings, JsonTokens, Output, Structure};

use crate::{English, EnglishText, ReasoningForm, Tokenizer};

/// The name of this source in error messages.
const NAME: &str = "text";

/// Default length of reasoning, in tokens.
const REASONING_TOKENS: usize = 60;

/// Limits of the cache of parsed structures: their number, and the bytes of their requests.
const STRUCTURES_MAX: usize = 64;
const STRUCTURE_BYTES_MAX: usize = 2 << 20;

/// A cache of parsed structures, by request. The most recent comes last.
#[derive(Default)]
struct Structures(VecDeque<(String, Arc<Structure>)>);

impl Structures {
    fn get(&self, asked: &str) -> Option<Arc<Structure>> {
        self.0.iter().rev().find(|(own, _)| own == asked).map(|(_, structure)| Arc::clone(structure))
    }

    fn insert(&mut self, asked: &str, structure: &Arc<Structure>) {
        self.0.push_back((asked.to_owned(), Arc::clone(structure)));
        while self.0.len() > 1
            && (self.0.len() > STRUCTURES_MAX
                || self.0.iter().map(|(own, _)| own.len()).sum::<usize>() > STRUCTURE_BYTES_MAX)
        {
            self.0.pop_front();
        }
    }
}

/// State shared by the sources of one model.
#[derive(Clone)]
pub struct TextModel {
    tokenizer: Tokenizer,
    english: English,
    /// Tokens that can form JSON, or the reason why the vocabulary has none.
    structured: Arc<Result<JsonTokens, String>>,
    structures: Arc<Mutex<Structures>>,
    output_tokens: Option<Distribution>,
    reasoning: Option<ReasoningForm>,
    reasoning_tokens: Option<Distribution>,
    arguments: ArgumentSettings,
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel").field("english", &self.english).finish_non_exhaustive()
    }
}

impl TextModel {
    /// Uses the vocabulary of `tokenizer`.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let plain = (0..tokenizer.vocab_size()).filter(|id| !tokenizer.is_special(*id));
        let pieces = plain.map(|id| (tokenizer.token_bytes(id).to_vec(), id));
        let structured = JsonTokens::of_pieces(pieces.filter(|(piece, _)| !piece.is_empty()).collect());
        Self {
            tokenizer: tokenizer.clone(),
            english: English::new(tokenizer),
            structured: Arc::new(structured),
            structures: Arc::default(),
            output_tokens: None,
            reasoning: None,
            reasoning_tokens: None,
            arguments: ArgumentSettings::default(),
        }
    }

    /// Draws the lengths of English outputs from a distribution.
    #[must_use]
    pub fn with_output_tokens(self, output_tokens: Option<Distribution>) -> Self {
        Self { output_tokens, ..self }
    }

    /// Adds reasoning before each answer, if the prompt leaves room. The length comes from `tokens`; without a
    /// distribution, reasoning has a few sentences.
    #[must_use]
    pub fn with_reasoning(self, form: Option<ReasoningForm>, tokens: Option<Distribution>) -> Self {
        Self { reasoning: form, reasoning_tokens: tokens, ..self }
    }

    /// Uses these settings for the arguments of tool calls.
    #[must_use]
    pub fn with_arguments(self, arguments: ArgumentSettings) -> Self {
        Self { arguments, ..self }
    }

    /// Creates the source of one engine.
    #[must_use]
    pub fn source(&self) -> TextSource {
        TextSource { model: self.clone(), outputs: BTreeMap::new() }
    }

    /// Parses the requested structure, or returns it from the cache. The server calls this before it sends the
    /// request, which saves the engine the work. Parsing stops once `is_gone` returns true, because the client has
    /// left.
    ///
    /// # Errors
    /// When the structure is not supported, needs too much work, or parsing was stopped.
    pub fn structure(&self, asked: &str, is_gone: &dyn Fn() -> bool) -> Result<Arc<Structure>, String> {
        let structures = || self.structures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(structure) = structures().get(asked) {
            return Ok(structure);
        }
        let structured = self.structured.as_ref().as_ref().map_err(Clone::clone)?;
        let structure = Arc::new(structured.structure_unless(asked, is_gone)?);
        structures().insert(asked, &structure);
        Ok(structure)
    }

    fn start(&self, request: &TokenRequest<'_>) -> Result<RequestOutput, String> {
        let opening = self.opening(request);
        let before = opening.len() as u32;
        if request.structured_output.is_empty() {
            return Ok(RequestOutput { opening, answer: Answer::English(self.english(request)) });
        }
        let structure = self.structure(request.structured_output, &|| false)?;
        let structured = self.structured.as_ref().as_ref().map_err(Clone::clone)?;
        let request = TokenRequest {
            max_tokens: request.max_tokens.saturating_sub(before),
            min_tokens: request.min_tokens.saturating_sub(before),
            ..*request
        };
        Ok(RequestOutput {
            opening,
            answer: Answer::Structured(structured.follow_structure(&structure, &request, &self.arguments)?),
        })
    }

    /// Generates the reasoning, at most half of the output.
    fn opening(&self, request: &TokenRequest<'_>) -> Vec<u32> {
        let Some(form) = &self.reasoning else { return Vec::new() };
        let drawn = drawn(self.reasoning_tokens.as_ref(), request.seed, "live.reasoning-tokens");
        let wanted = drawn.map_or(REASONING_TOKENS, |tokens| tokens as usize);
        let most = wanted.min(request.max_tokens as usize / 2);
        let phase = form.phase(&self.tokenizer, request.prompt);
        let budget = request.thinking_token_budget.map(|tokens| tokens as usize);
        form.write(phase, &self.tokenizer, &self.english, request.seed, (most, budget))
    }

    fn english(&self, request: &TokenRequest<'_>) -> Sentences {
        Sentences {
            text: self.english.start(request.seed),
            length: drawn(self.output_tokens.as_ref(), request.seed, "live.output-tokens"),
            min_tokens: request.min_tokens,
            eos_token: request.eos_token,
            stop_tokens: request.stop_tokens.to_vec(),
        }
    }
}

/// Draws a length of at least one token.
fn drawn(lengths: Option<&Distribution>, seed: u64, stream: &str) -> Option<u32> {
    lengths.map(|lengths| (lengths.draw(&mut Stream::new(seed, stream)).round() as u32).max(1))
}

/// The token source of one engine. The text depends on the end of the prompt and on the request's seed. Structured
/// outputs that are not supported are refused.
#[derive(Debug)]
pub struct TextSource {
    model: TextModel,
    outputs: BTreeMap<u32, RequestOutput>,
}

struct RequestOutput {
    opening: Vec<u32>,
    answer: Answer,
}

enum Answer {
    English(Sentences),
    Structured(Output),
    /// The request was refused, so its tokens have no meaning.
    Nothing,
}

/// English text. It ends after `length` tokens if a length is given, and otherwise where the text ends by itself.
struct Sentences {
    text: EnglishText,
    length: Option<u32>,
    min_tokens: u32,
    eos_token: Option<u32>,
    stop_tokens: Vec<u32>,
}

impl std::fmt::Debug for RequestOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.answer {
            Answer::English(_) => "English",
            Answer::Structured(_) => "Structured",
            Answer::Nothing => "Nothing",
        })
    }
}

impl RequestOutput {
    fn token(&mut self, index: u32, model: &TextModel) -> Result<u32, String> {
        if let Some(token) = self.opening.get(index as usize) {
            return Ok(*token);
        }
        match &mut self.answer {
            Answer::Nothing => Ok(0),
            Answer::English(sentences) => Ok(sentences.token(index, &model.english)),
            Answer::Structured(output) => match model.structured.as_ref() {
                Ok(structured) => structured.continued(output, index - self.opening.len() as u32),
                Err(reason) => Err(reason.clone()),
            },
        }
    }
}

impl Sentences {
    fn token(&mut self, index: u32, english: &English) -> u32 {
        let is_over = self.length.map_or_else(|| self.text.is_over(), |length| index >= length);
        match self.eos_token.filter(|_| is_over && index >= self.min_tokens) {
            Some(eos_token) => eos_token,
            None => self.word(index, english),
        }
    }

    /// Returns the next token of the text, and no stop token before `min_tokens`.
    fn word(&mut self, index: u32, english: &English) -> u32 {
        let mut token = self.text.next_token(english);
        // If every token of the text is a stop token, return one after 64 tries.
        for _ in 0..64 {
            if index >= self.min_tokens || !self.stop_tokens.contains(&token) {
                break;
            }
            token = self.text.next_token(english);
        }
        token
    }
}

impl BatchTokenSource for TextSource {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let refusal = |slot, reason| TokenRefusal { slot, source: NAME.to_owned(), reason };
        for slot in ended {
            self.outputs.remove(slot);
        }
        for request in started {
            let said = self.model.start(request).unwrap_or_else(|reason| {
                answer.refusals.push(refusal(request.slot, reason));
                RequestOutput { opening: Vec::new(), answer: Answer::Nothing }
            });
            self.outputs.insert(request.slot, said);
        }
        for want in wants {
            let said = self.outputs.get_mut(&want.slot).ok_or_else(|| TokenError {
                r#source: NAME.to_owned(),
                reason: format!("slot {} was wanted, but not started", want.slot),
            })?;
            for index in want.first_index..want.first_index.saturating_add(want.count) {
                let token = said.token(index, &self.model).unwrap_or_else(|reason| {
                    answer.refusals.push(refusal(want.slot, reason));
                    said.answer = Answer::Nothing;
                    0
                });
                answer.tokens.push(token);
            }
        }
        Ok(())
    }
}
