//! Output tokens that a source outside the engine chooses, and the prompts that the source is shown. Most requests
//! of virtual runs have no prompt tokens, so these are drawn from the identity of the prompt's blocks.

use std::collections::BTreeMap;

use vcr_core::plan::StepPlan;
use vcr_core::seed::mix;
use vcr_core::tokens::{
    BatchTokenSource, DecidedDrafts, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant,
};
use vcr_core::{Prompt, TokenSource};

use super::drawn::Acceptance;

/// Drawn prompt tokens are below this number, which is a common vocabulary size.
const VOCABULARY_TOKENS: u64 = 32_000;

/// A request that the source has not been shown yet.
struct Started {
    slot: u32,
    seed: u64,
    prompt: Vec<u32>,
    max_tokens: u32,
    eos_token: Option<u32>,
}

impl Started {
    fn request(&self) -> TokenRequest<'_> {
        TokenRequest {
            slot: self.slot,
            seed: self.seed,
            prompt: &self.prompt,
            max_tokens: self.max_tokens,
            min_tokens: 0,
            eos_token: self.eos_token,
            stop_tokens: &[],
            structured_output: "",
            thinking_token_budget: None,
        }
    }
}

/// The token source of one engine, and the tokens that it has chosen so far.
pub(crate) struct ChosenTokens {
    source: Box<dyn BatchTokenSource>,
    started: Vec<Started>,
    ended: Vec<u32>,
    wants: Vec<TokenWant>,
    answer: TokenAnswer,
    slots: BTreeMap<u64, u32>,
    vacant: Vec<u32>,
    /// Chosen tokens of the request in each slot.
    outputs: Vec<Vec<u32>>,
    decided: DecidedDrafts,
}

impl ChosenTokens {
    pub(crate) fn new(source: Box<dyn BatchTokenSource>) -> Self {
        Self {
            source,
            started: Vec::new(),
            ended: Vec::new(),
            wants: Vec::new(),
            answer: TokenAnswer::default(),
            slots: BTreeMap::new(),
            vacant: Vec::new(),
            outputs: Vec::new(),
            decided: DecidedDrafts::default(),
        }
    }

    pub(crate) fn start(&mut self, tag: u64, seed: u64, prompt: Vec<u32>, max_tokens: u32, eos_token: Option<u32>) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.outputs.push(Vec::new());
            self.outputs.len() as u32 - 1
        });
        self.slots.insert(tag, slot);
        self.started.push(Started { slot, seed, prompt, max_tokens, eos_token });
    }

    /// Ends a request that left the engine. Returns the tokens that were chosen for the request.
    pub(crate) fn end(&mut self, tag: u64) -> Vec<u32> {
        let Some(slot) = self.slots.remove(&tag) else { return Vec::new() };
        self.vacant.push(slot);
        self.decided.end(slot);
        let num_started = self.started.len();
        self.started.retain(|started| started.slot != slot);
        // The source need not hear of the end of a request that it never saw.
        if self.started.len() == num_started {
            self.ended.push(slot);
        }
        std::mem::take(&mut self.outputs[slot as usize])
    }

    /// Lets the source choose all tokens that the step `plan` may generate. Each request may get `more` tokens in
    /// addition to one token and its drafts.
    pub(crate) fn prepare(
        &mut self,
        plan: &StepPlan,
        more: u32,
        output_tokens: impl Fn(u64) -> u32,
    ) -> Result<(), TokenError> {
        self.wants.clear();
        for entry in plan.scheduled.iter().filter(|entry| entry.samples) {
            // A request that ended in the previous step gets no tokens.
            let Some(&slot) = self.slots.get(&entry.tag) else { continue };
            // Tokens after a rejected draft were already chosen in an earlier step.
            let first_index = self.outputs[slot as usize].len() as u32;
            let needed = output_tokens(entry.tag) + 1 + u32::from(entry.num_draft_tokens) + more;
            if needed > first_index {
                self.wants.push(TokenWant { slot, first_index, count: needed - first_index });
            }
        }
        if self.wants.is_empty() {
            return Ok(());
        }
        let started: Vec<TokenRequest<'_>> = self.started.iter().map(Started::request).collect();
        self.answer.clear();
        self.source.step(&started, &self.ended, &self.wants, &mut self.answer)?;
        self.started.clear();
        self.ended.clear();
        if let Some(refusal) = self.answer.refusals.first() {
            return Err(self.refusal_error(refusal));
        }
        self.decided.take_over(&self.answer);
        for (want, tokens) in self.answer.tokens_by_want("tokens", &self.wants)? {
            self.outputs[want.slot as usize].extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Converts a refusal to an error of the run: requests have no client that could receive the refusal.
    #[cold]
    fn refusal_error(&self, refusal: &TokenRefusal) -> TokenError {
        let TokenRefusal { slot, source, reason } = refusal;
        let tag = self.slots.iter().find(|(_, of_tag)| *of_tag == slot).map(|(tag, _)| *tag);
        let request = tag.map_or_else(|| format!("in slot {slot}"), |tag| tag.to_string());
        TokenError { source: source.clone(), reason: format!("it refused request {request}: {reason}") }
    }

    /// The number of a request's drafts that the source accepts; None if the source has not decided.
    fn accepted_drafts(&self, tag: u64, num_drafts: u32) -> Option<u32> {
        // Most sources never decide, so the slot of the request is looked up only if needed.
        if self.decided.is_empty() {
            return None;
        }
        self.decided.accepted(*self.slots.get(&tag)?, num_drafts)
    }

    pub(crate) fn of_step<'a>(&'a self, acceptance: Acceptance<'a>) -> PreparedTokens<'a> {
        PreparedTokens { chosen: self, acceptance }
    }
}

pub(crate) struct PreparedTokens<'a> {
    chosen: &'a ChosenTokens,
    acceptance: Acceptance<'a>,
}

impl TokenSource for PreparedTokens<'_> {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        let slot = self.chosen.slots[&tag];
        self.chosen.outputs[slot as usize][output_index as usize]
    }

    fn extra_tokens(&mut self, _tag: u64, max_extra: u32) -> u32 {
        self.acceptance.accepted(max_extra)
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        self.chosen.accepted_drafts(tag, num_drafts).unwrap_or_else(|| self.acceptance.accepted(num_drafts))
    }
}

/// Tokens that represent a prompt. Two prompts get equal tokens where their blocks are equal. The tokens after the
/// last full block are equal only if the whole prompts are equal.
pub(crate) fn prompt_tokens_of(prompt: &Prompt, block_size_tokens: u32) -> Vec<u32> {
    let token = |content: u64, index: u32| ((mix(content ^ u64::from(index)) >> 32) % VOCABULARY_TOKENS) as u32;
    let blocks = prompt.block_hashes();
    let mut tokens = Vec::with_capacity(prompt.len_tokens() as usize);
    for &block in blocks {
        tokens.extend((0..block_size_tokens).map(|index| token(block, index)));
    }
    let tail = prompt.len_tokens() - tokens.len() as u32;
    tokens.extend((0..tail).map(|index| token(prompt.content_hash(), index)));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(runs: &[(u64, u32)]) -> Prompt {
        let mut prompt = Prompt::new(16, 0);
        for &(content, len_tokens) in runs {
            prompt.push_run(content, 0, len_tokens);
        }
        prompt
    }

    #[test]
    fn equal_beginnings_have_equal_tokens_and_nothing_else_has() {
        let first = prompt_tokens_of(&prompt(&[(1, 32), (2, 20)]), 16);
        let second = prompt_tokens_of(&prompt(&[(1, 32), (3, 20)]), 16);
        assert_eq!((first.len(), second.len()), (52, 52));
        assert_eq!(first[..32], second[..32]);
        let equal = first[32..].iter().zip(&second[32..]).filter(|(a, b)| a == b).count();
        assert!(equal < 3, "{equal} of 20 are equal by chance");
        assert_eq!(first, prompt_tokens_of(&prompt(&[(1, 32), (2, 20)]), 16));
        assert!(first.iter().all(|token| u64::from(*token) < VOCABULARY_TOKENS));
    }
}
