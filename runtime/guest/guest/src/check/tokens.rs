//! Asks for outputs of requests: short and long prompts, end tokens, draft tokens, structured output.

use std::collections::BTreeMap;

use vcr_core::tokens::{TokenRequest, TokenWant};

use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table, input};
use crate::error::CallFault;
use crate::latest::{TokenCall, TokenInstance};
use crate::remarks::{Remarks, RunningSlots};

/// Number of requests, and of concurrent requests.
const REQUESTS: u64 = 600;
const SLOTS: u32 = 48;

const VOCABULARY: u64 = 32_000;

/// Structured-output parameters as frontends send them.
const STRUCTURED: [&str; 4] = [
    r#"{"json_object": true}"#,
    r#"{"choice": ["yes", "no"]}"#,
    r#"{"json": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}}"#,
    r#"{"regex": "[a-z]+@[a-z]+"}"#,
];

/// The word that stands for a refused request.
const REFUSED: u64 = u64::MAX;

/// The word that precedes a slot and its number of accepted drafts.
const ACCEPTED: u64 = u64::MAX - 1;

pub(super) struct Emitting {
    split: Split,
    draw: Draw,
    requests_left: u64,
    /// Free slots; the last entry is used next.
    free: Vec<u32>,
    live: Vec<Live>,
    /// Slots of requests that ended since the last call.
    ended: Vec<u32>,
    slots: RunningSlots,
    /// Slots of requests refused in this step.
    refused: Vec<u32>,
    /// Number of accepted drafts by slot, if this step changed it.
    accepted: BTreeMap<u32, u32>,
}

/// A running request.
struct Live {
    slot: u32,
    min_tokens: u32,
    max_tokens: u32,
    /// Tokens that end the request.
    ends: Vec<u32>,
    /// Number of tokens received.
    tokens: u32,
    /// Number of steps until its prompt is computed.
    prefill_steps: u64,
}

/// A starting request that owns its lists.
struct Starting {
    slot: u32,
    seed: u64,
    prompt: Vec<u32>,
    min_tokens: u32,
    max_tokens: u32,
    eos_token: Option<u32>,
    stop_tokens: Vec<u32>,
    structured_output: &'static str,
}

impl Starting {
    fn request(&self) -> TokenRequest<'_> {
        TokenRequest {
            slot: self.slot,
            seed: self.seed,
            prompt: &self.prompt,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            eos_token: self.eos_token,
            stop_tokens: &self.stop_tokens,
            structured_output: self.structured_output,
            thinking_token_budget: None,
        }
    }
}

impl Driver for Emitting {
    type Instance = dyn TokenInstance;

    const SPLITS: (&'static [Split], &'static str) =
        (&[Split::Finest], "requests that start in one step may arrive in one call or in several");

    fn new(seed: u64, split: Split) -> Self {
        Self {
            split,
            draw: Draw::new(seed, "requests"),
            requests_left: REQUESTS,
            free: (0..SLOTS).rev().collect(),
            live: Vec::new(),
            ended: Vec::new(),
            slots: RunningSlots::default(),
            refused: Vec::new(),
            accepted: BTreeMap::new(),
        }
    }

    fn step(&mut self, table: &mut Table<'_, '_, dyn TokenInstance>) -> Result<Step, GuestFailure> {
        if self.requests_left == 0 && self.live.is_empty() && self.ended.is_empty() {
            return Ok(Step::Over);
        }
        let ended = std::mem::take(&mut self.ended);
        self.free.extend(ended.iter().rev());
        let started = self.start();
        let wants = self.want();

        let tokens = match self.split {
            Split::Finest => {
                for (index, request) in started.iter().enumerate() {
                    let is_last = index + 1 == started.len();
                    let ended_slots: &[u32] = if index == 0 { &ended } else { &[] };
                    if is_last {
                        break;
                    }
                    self.send(table, std::slice::from_ref(request), ended_slots, &[])?;
                }
                let ended_slots: &[u32] = if started.len() > 1 { &[] } else { &ended };
                self.send(table, &started[started.len().saturating_sub(1)..], ended_slots, &wants)?
            }
            Split::AsItComes | Split::Coarsest => self.send(table, &started, &ended, &wants)?,
        };
        Ok(Step::Answered(self.take(&wants, &tokens)))
    }

    fn show(word: u64) -> String {
        match word {
            REFUSED => "a refusal".to_owned(),
            ACCEPTED => "accepted drafts".to_owned(),
            token => token.to_string(),
        }
    }
}

impl Emitting {
    fn start(&mut self) -> Vec<Starting> {
        let mut started = Vec::new();
        let mut burst = if self.draw.once_in(3) { self.draw.length(1, 8) } else { 0 };
        // Nothing is running, so a request must start.
        if self.live.is_empty() {
            burst = burst.max(1);
        }
        while burst > 0 && self.requests_left > 0 {
            let Some(slot) = self.free.pop() else { break };
            burst -= 1;
            self.requests_left -= 1;
            let request = self.request(slot);
            self.live.push(Live {
                slot,
                min_tokens: request.min_tokens,
                max_tokens: request.max_tokens,
                ends: request.eos_token.into_iter().chain(request.stop_tokens.iter().copied()).collect(),
                tokens: 0,
                prefill_steps: self.draw.below(3),
            });
            started.push(request);
        }
        started
    }

    fn request(&mut self, slot: u32) -> Starting {
        let draw = &mut self.draw;
        let token = |draw: &mut Draw| draw.below(VOCABULARY) as u32;
        let max_tokens = draw.length(1, 256) as u32;
        let stops = if draw.once_in(4) { draw.within(1, 3) } else { 0 };
        let prompt_tokens = draw.length(1, 4_096);
        Starting {
            slot,
            seed: draw.bits(),
            prompt: (0..prompt_tokens).map(|_| token(draw)).collect(),
            min_tokens: if draw.once_in(4) { draw.below(u64::from(max_tokens)) as u32 } else { 0 },
            max_tokens,
            eos_token: (!draw.once_in(8)).then_some(2),
            stop_tokens: (0..stops).map(|_| token(draw)).collect(),
            structured_output: if draw.once_in(5) { STRUCTURED[draw.below(4) as usize] } else { "" },
        }
    }

    /// Draws the tokens that a step asks for.
    fn want(&mut self) -> Vec<TokenWant> {
        let drafts = self.draw.once_in(4);
        let mut wants = Vec::new();
        for live in &mut self.live {
            if live.prefill_steps > 0 {
                live.prefill_steps -= 1;
                continue;
            }
            let count = if drafts { self.draw.within(1, 4) as u32 } else { 1 };
            let count = count.min(live.max_tokens - live.tokens);
            wants.push(TokenWant { slot: live.slot, first_index: live.tokens, count });
        }
        wants
    }

    /// Gives requests their tokens and ends completed or refused requests. Returns the answer of the step as words.
    fn take(&mut self, wants: &[TokenWant], tokens: &[u32]) -> Vec<u64> {
        let mut refused = std::mem::take(&mut self.refused);
        refused.sort_unstable();
        // Includes refused requests without tokens in this step.
        let mut words: Vec<u64> = refused.iter().flat_map(|slot| [REFUSED, u64::from(*slot)]).collect();
        let accepted = std::mem::take(&mut self.accepted).into_iter();
        words.extend(accepted.flat_map(|(slot, count)| [ACCEPTED, u64::from(slot), u64::from(count)]));
        let mut rest = tokens;
        for TokenWant { slot, count, .. } in wants {
            let (mine, others) = rest.split_at(*count as usize);
            rest = others;
            if refused.contains(slot) {
                continue;
            }
            words.extend(mine.iter().copied().map(u64::from));
            let index = self.live.iter().position(|live| live.slot == *slot);
            let live = &mut self.live[index.expect("tokens are wanted of those that run")];
            let mut is_over = false;
            for token in mine {
                live.tokens += 1;
                let ends = live.ends.contains(token) && live.tokens > live.min_tokens;
                is_over = is_over || ends || live.tokens >= live.max_tokens;
            }
            if is_over {
                self.ended.push(*slot);
            }
        }
        self.ended.extend(refused);
        self.live.retain(|live| !self.ended.contains(&live.slot));
        words
    }

    fn send(
        &mut self,
        table: &mut Table<'_, '_, dyn TokenInstance>,
        started: &[Starting],
        ended: &[u32],
        wants: &[TokenWant],
    ) -> Result<Vec<u32>, GuestFailure> {
        ended.iter().for_each(|slot| self.slots.end(*slot));
        started.iter().for_each(|request| self.slots.start(request.slot));
        let started: Vec<TokenRequest<'_>> = started.iter().map(Starting::request).collect();
        let wanted: usize = wants.iter().map(|want| want.count as usize).sum();
        let items = started.len() + ended.len() + wanted;
        if items == 0 {
            return Ok(Vec::new());
        }
        let budget = table.limits.budget(items, wanted * size_of::<u32>());
        let call = TokenCall { started: &started, ended, wants };
        let mut remarks = Remarks::default();
        let answer = table
            .meter
            .call("step", items, budget, table.instance, |instance, budget| instance.step(call, &mut remarks, budget));
        let checked = answer.and_then(|answer| {
            if answer.len() != wanted {
                return Err(CallFault::TokenCount { given: answer.len(), wanted });
            }
            self.slots.check(&mut remarks, 0, 0).map(|()| answer)
        });
        let answer = table.meter.explained("step", checked, || input::tokens(&call))?;
        self.refused.extend(remarks.refused.into_iter().map(|one| one.slot));
        self.accepted.extend(remarks.accepted.into_iter().map(|one| (one.slot, one.count)));
        Ok(answer)
    }
}
