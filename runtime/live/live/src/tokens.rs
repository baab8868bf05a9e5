//! Sources of output tokens.
//!
//! All random draws use a seed derived from the request's content: its prompt, adapter, sampling seed, and index
//! among the completions of one call. The request's ID is not included, so a frontend that invents IDs gets the
//! same text for the same prompt.

use std::collections::VecDeque;
use std::sync::Arc;

use vcr_base::random::Stream;
use vcr_core::plan::StepPlan;
use vcr_core::seed::mix;
use vcr_core::tokens::{
    BatchTokenSource, DecidedDrafts, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant,
};
use vcr_core::{PluginContext, TokenSource};
use vcr_wire::Value;

use crate::config::{TokenChoice, TokenSettings};
use crate::requests::slot_of;

/// The properties of a request that the source gets.
pub(crate) struct SourceRequest<'a> {
    pub(crate) tag: u64,
    pub(crate) seed: u64,
    pub(crate) prompt: &'a [u32],
    pub(crate) max_tokens: u32,
    pub(crate) min_tokens: u32,
    pub(crate) eos_token: Option<u32>,
    pub(crate) stop_tokens: &'a [u32],
    /// The only tokens that may be drawn; empty: all may.
    pub(crate) allowed_tokens: &'a [u32],
    pub(crate) structured_output: &'a Arc<str>,
    /// Maximum number of reasoning tokens.
    pub(crate) thinking_token_budget: Option<u32>,
    /// The recorded answer, if there is one; none of its tokens are masked.
    pub(crate) recorded: Option<&'a [u32]>,
}

#[derive(Default)]
struct Slot {
    seed: u64,
    /// Index of the end-of-text token; `u32::MAX` if there is none.
    eos_index: u32,
    eos_token: u32,
    min_tokens: u32,
    /// Tokens that are given before any are drawn. A guest's tokens are added step by step.
    listed: Vec<u32>,
    stop_tokens: Box<[u32]>,
    allowed_tokens: Box<[u32]>,
}

pub(crate) struct Tokens {
    settings: TokenSettings,
    guest: Option<Guest>,
    slots: Vec<Slot>,
    decided: DecidedDrafts,
    acceptance: Stream,
    next_in_turn: usize,
    /// The latest structure of an output, and its text. The requests of one call share it.
    structure: Option<(Arc<Value>, Arc<str>)>,
}

/// A token source that is asked once per step.
struct Guest {
    source: Box<dyn BatchTokenSource>,
    /// Requests that the source does not know yet.
    started: VecDeque<Started>,
    ended: Vec<u32>,
    wants: Vec<TokenWant>,
    answer: TokenAnswer,
}

struct Started {
    slot: u32,
    seed: u64,
    prompt: Vec<u32>,
    max_tokens: u32,
    min_tokens: u32,
    eos_token: Option<u32>,
    stop_tokens: Vec<u32>,
    structured_output: Arc<str>,
    thinking_token_budget: Option<u32>,
}

impl Tokens {
    pub(crate) fn new(settings: TokenSettings, plugin_context: &PluginContext<'_>) -> Result<Self, TokenError> {
        let guest = match &settings.choice {
            TokenChoice::Guest(make) | TokenChoice::Native(make) => Some(Guest {
                source: make(plugin_context)?,
                started: VecDeque::new(),
                ended: Vec::new(),
                wants: Vec::new(),
                answer: TokenAnswer::default(),
            }),
            _ => None,
        };
        let acceptance = Stream::new(plugin_context.seed, "live.acceptance");
        let (slots, decided) = (Vec::new(), DecidedDrafts::default());
        Ok(Self { settings, guest, slots, decided, acceptance, next_in_turn: 0, structure: None })
    }

    pub(crate) fn vocab_size(&self) -> u32 {
        self.settings.vocab_size
    }

    /// The structure of an output as JSON for a token source; empty if the source ignores it.
    pub(crate) fn structure_text(&mut self, structure: Option<&Arc<Value>>) -> Arc<str> {
        let Some(structure) = structure.filter(|_| self.guest.is_some()) else { return Arc::default() };
        if let Some((_, text)) = self.structure.as_ref().filter(|(known, _)| Arc::ptr_eq(known, structure)) {
            return Arc::clone(text);
        }
        let text: Arc<str> = serde_json::to_string(&**structure).unwrap_or_default().into();
        self.structure = Some((Arc::clone(structure), Arc::clone(&text)));
        text
    }

    /// Stores what is needed for a request that is about to be submitted.
    pub(crate) fn start(&mut self, asked: &SourceRequest<'_>) {
        let index = slot_of(asked.tag);
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        if let Some(recorded) = asked.recorded {
            let listed = recorded.to_vec();
            self.slots[index] = Slot { seed: asked.seed, eos_index: u32::MAX, listed, ..Slot::default() };
            return;
        }
        let (listed, eos_index) = self.text(asked);
        self.slots[index] = Slot {
            seed: asked.seed,
            eos_index: if asked.eos_token.is_some() { eos_index.max(asked.min_tokens) } else { u32::MAX },
            eos_token: asked.eos_token.unwrap_or(u32::MAX),
            min_tokens: asked.min_tokens,
            listed,
            stop_tokens: if asked.min_tokens > 0 { asked.stop_tokens.into() } else { Box::default() },
            allowed_tokens: asked.allowed_tokens.into(),
        };
        if let Some(guest) = &mut self.guest {
            guest.started.push_back(Started {
                slot: index as u32,
                seed: asked.seed,
                prompt: asked.prompt.to_vec(),
                max_tokens: asked.max_tokens,
                min_tokens: asked.min_tokens,
                eos_token: asked.eos_token,
                stop_tokens: asked.stop_tokens.to_vec(),
                structured_output: Arc::clone(asked.structured_output),
                thinking_token_budget: asked.thinking_token_budget,
            });
        }
    }

    /// Tokens given in advance, and the index of the end of the text.
    fn text(&mut self, asked: &SourceRequest<'_>) -> (Vec<u32>, u32) {
        let drawn_end = || {
            let tokens = self.settings.output_tokens.as_ref()?;
            let drawn = tokens.draw(&mut Stream::new(asked.seed, "live.output-tokens")).round();
            Some((drawn as u32).max(1))
        };
        match &self.settings.choice {
            TokenChoice::Random => (Vec::new(), drawn_end().unwrap_or(u32::MAX)),
            TokenChoice::Guest(_) | TokenChoice::Native(_) => (Vec::new(), u32::MAX),
            TokenChoice::Echo => (asked.prompt.into(), asked.prompt.len() as u32),
            TokenChoice::Listed(list) => {
                let own = list.of_prompt(asked.prompt);
                let listed = own.or_else(|| {
                    let in_turn = list.in_turn.get(self.next_in_turn % list.in_turn.len().max(1))?;
                    self.next_in_turn += 1;
                    Some(in_turn)
                });
                let listed = listed.unwrap_or_default();
                (listed.into(), listed.len() as u32)
            }
        }
    }

    pub(crate) fn end(&mut self, tag: u64) {
        let index = slot_of(tag);
        let Some(slot) = self.slots.get_mut(index) else { return };
        *slot = Slot::default();
        self.decided.end(index as u32);
        if let Some(guest) = &mut self.guest {
            let slot = index as u32;
            let num_started = guest.started.len();
            guest.started.retain(|started| started.slot != slot);
            // The guest does not know the request yet, so it need not get the request's end either.
            if guest.started.len() == num_started {
                guest.ended.push(slot);
            }
        }
    }

    /// Lets a guest choose all tokens that the step `plan` may output.
    pub(crate) fn prepare(
        &mut self,
        plan: &StepPlan,
        output_tokens: impl Fn(u64) -> Option<u32>,
    ) -> Result<(), TokenError> {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        guest.wants.clear();
        for entry in plan.scheduled.iter().filter(|entry| entry.samples) {
            let Some(output_tokens) = output_tokens(entry.tag) else { continue };
            let slot = slot_of(entry.tag);
            // Tokens after a rejected draft were chosen in an earlier step.
            let first_index = self.slots[slot].listed.len() as u32;
            let needed = output_tokens + 1 + u32::from(entry.num_draft_tokens);
            if needed > first_index {
                guest.wants.push(TokenWant { slot: slot as u32, first_index, count: needed - first_index });
            }
        }
        if guest.wants.is_empty() {
            return Ok(());
        }
        let started: Vec<_> = guest.started.iter().map(Started::request).collect();
        guest.answer.clear();
        guest.source.step(&started, &guest.ended, &guest.wants, &mut guest.answer)?;
        guest.started.clear();
        guest.ended.clear();
        self.decided.take_over(&guest.answer);
        for (want, tokens) in guest.answer.tokens_by_want("guest", &guest.wants)? {
            self.slots[want.slot as usize].listed.extend_from_slice(tokens);
        }
        Ok(())
    }
}

impl Tokens {
    /// Takes the requests that the guest refused when the last step was prepared.
    pub(crate) fn take_refusals(&mut self) -> Vec<TokenRefusal> {
        self.guest.as_mut().map(|guest| std::mem::take(&mut guest.answer.refusals)).unwrap_or_default()
    }
}

impl Started {
    fn request(&self) -> TokenRequest<'_> {
        TokenRequest {
            slot: self.slot,
            seed: self.seed,
            prompt: &self.prompt,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            eos_token: self.eos_token,
            stop_tokens: &self.stop_tokens,
            structured_output: &self.structured_output,
            thinking_token_budget: self.thinking_token_budget,
        }
    }
}

impl Slot {
    /// The token at `index`, if none was given.
    fn drawn(&self, index: u32, vocab_size: u32) -> u32 {
        let draw = mix(self.seed ^ u64::from(index)) >> 32;
        if !self.allowed_tokens.is_empty() {
            return self.allowed_tokens[draw as usize % self.allowed_tokens.len()];
        }
        let mut token = (draw % u64::from(vocab_size)) as u32;
        // Take the next token that is allowed here; any token if all stop the request.
        for _ in 0..=self.stop_tokens.len() + 1 {
            if token != self.eos_token && !self.is_masked(token, index) {
                break;
            }
            token = (token + 1) % vocab_size;
        }
        token
    }

    /// vLLM prevents stop tokens from being sampled before `min_tokens`.
    fn is_masked(&self, token: u32, index: u32) -> bool {
        index < self.min_tokens && (token == self.eos_token || self.stop_tokens.contains(&token))
    }
}

impl TokenSource for Tokens {
    #[inline]
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        let slot = &self.slots[slot_of(tag)];
        if output_index == slot.eos_index {
            return slot.eos_token;
        }
        match slot.listed.get(output_index as usize).copied() {
            Some(token) if !slot.is_masked(token, output_index) => token,
            _ => slot.drawn(output_index, self.settings.vocab_size),
        }
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        if let Some(accepted) = self.decided.accepted(slot_of(tag) as u32, num_drafts) {
            return accepted;
        }
        let rates = self.settings.acceptance_rates.iter().copied().chain(std::iter::repeat(0.0));
        rates.take(num_drafts as usize).take_while(|rate| self.acceptance.unit() < *rate).count() as u32
    }
}

/// A seed from `base`, the tokens of a prompt, and `extra`.
pub(crate) fn content_seed(base: u64, prompt: &[u32], extra: u64) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::with_seed(base);
    let mut bytes = [0; 256];
    for tokens in prompt.chunks(64) {
        for (token, word) in tokens.iter().zip(bytes.chunks_exact_mut(4)) {
            word.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..tokens.len() * 4]);
    }
    hasher.update(&extra.to_le_bytes());
    hasher.digest()
}
