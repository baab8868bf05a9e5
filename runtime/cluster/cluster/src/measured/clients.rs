//! Clients that cancel requests, time out and retry.

use vcr_core::Prompt;

use super::MeasuredRun;
use crate::ledger::record::{GiveUp, Outcome};
use crate::traffic::{Attempt, Earlier, FollowUp, Patience, Turn};

#[derive(Debug)]
pub(super) struct Pending {
    /// The turn. Its prompt is kept only if the client may retry.
    turn: Turn,
    client: Option<Client>,
}

/// A client that does not only wait.
#[derive(Debug)]
struct Client {
    attempt: Attempt,
    patience: Patience,
    /// When and why the client cancels the request in its current state.
    gives_up: Option<(u64, GiveUp)>,
}

impl Pending {
    /// Whether the prompt of the next turn repeats the answer to this request.
    pub(super) fn needs_answer(&self) -> bool {
        self.turn.follow_up.needs_answer()
    }
}

impl MeasuredRun {
    /// Starts the client's wait for the request with the next tag.
    pub(super) fn begin_wait(&mut self, tag: u64, mut turn: Turn, sent_ns: u64) {
        let config = self.traffic.client(self.ledger.record(tag).workload);
        let client = (!config.is_patient()).then(|| {
            let attempt = Attempt {
                number: turn.earlier.map_or(0, |earlier| earlier.attempts),
                first_sent_ns: turn.earlier.map_or(sent_ns, |earlier| earlier.first_sent_ns),
                sent_ns,
            };
            self.ledger.set_deadline(tag, config.last_ns(attempt));
            let patience = config.patience(self.traffic.output_seeds()[tag as usize], attempt);
            let gives_up = patience.ends(false);
            if let Some((at_ns, _)) = gives_up {
                self.events.expect_give_up(at_ns, tag);
            }
            Client { attempt, patience, gives_up }
        });
        if config.retry.is_none() {
            turn.prompt = Prompt::new(1, 0);
        }
        self.pending.push(Some(Pending { turn, client }));
    }

    /// Cancels a request for its client, unless its first token has arrived in the meantime: the client then
    /// waits for the rest. Returns whether it was cancelled.
    pub(super) fn give_up(&mut self, tag: u64, at_ns: u64) -> bool {
        let has_first_token = self.ledger.record(tag).first_token_ns.is_some();
        let Some(client) = self.pending[tag as usize].as_mut().and_then(|pending| pending.client.as_mut()) else {
            return false;
        };
        let Some((_, reason)) = client.gives_up.take() else { return false };
        if reason == GiveUp::FirstToken && has_first_token {
            client.gives_up = client.patience.ends(true);
            if let Some((next_ns, _)) = client.gives_up {
                self.events.expect_give_up(next_ns.max(at_ns), tag);
            }
            return false;
        }
        self.ledger.waste(tag);
        self.close_request(tag, Outcome::GivenUp(reason), at_ns);
        true
    }

    /// Whether the client has as many tokens as it wants. If so, the request has been ended.
    pub(super) fn has_enough(&mut self, tag: u64, at_ns: u64) -> bool {
        let client = self.pending[tag as usize].as_ref().and_then(|pending| pending.client.as_ref());
        let Some(tokens) = client.and_then(|client| client.patience.cancel_tokens()) else { return false };
        let record = self.ledger.record(tag);
        if record.output_tokens < tokens || record.output_tokens >= record.max_tokens {
            return false;
        }
        self.ledger.waste(tag);
        self.close_request(tag, Outcome::GivenUp(GiveUp::Cancelled), at_ns);
        true
    }

    pub(super) fn call_off_give_up(&mut self, tag: u64, pending: &Pending) {
        if let Some((at_ns, _)) = pending.client.as_ref().and_then(|client| client.gives_up) {
            self.events.call_off_give_up(at_ns, tag);
        }
    }

    /// Schedules the client's next attempt if the client retries. Otherwise returns the request's follow-up.
    pub(super) fn retry(&mut self, tag: u64, pending: Pending, outcome: Outcome, at_ns: u64) -> Option<FollowUp> {
        let Pending { turn, client } = pending;
        let Some(Client { attempt, .. }) = client else { return Some(turn.follow_up) };
        let workload = self.ledger.record(tag).workload;
        let seed = self.traffic.output_seeds()[tag as usize];
        let next_ns = self.traffic.client(workload).next_attempt_ns(seed, attempt, outcome, at_ns);
        let Some(next_ns) = next_ns else { return Some(turn.follow_up) };
        let earlier = Earlier { attempts: attempt.number + 1, first_sent_ns: attempt.first_sent_ns };
        let turn = Turn { earlier: Some(earlier), ..turn };
        self.traffic.expect_attempt(next_ns, tag, workload, turn, &mut self.events);
        None
    }
}
