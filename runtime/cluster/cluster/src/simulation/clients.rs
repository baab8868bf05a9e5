//! Clients that cancel requests, time out and retry.

use super::Simulation;
use crate::error::SimError;
use crate::in_flight::{Client, Live, Stage};
use crate::ledger::record::{GiveUp, Outcome};
use crate::observe::Observer;
use crate::traffic::{Attempt, Earlier, Turn};

impl<O: Observer> Simulation<'_, O> {
    /// Starts the client's wait for a request that it has sent.
    pub(super) fn begin_wait(&mut self, tag: u64, earlier: Option<Earlier>) {
        let workload = self.ledger.record(tag).workload;
        let config = self.traffic.client(workload);
        let cancels_at_ns = self.traffic.cancels_at_ns(workload);
        if config.is_patient() && cancels_at_ns.is_none() {
            return;
        }
        let attempt = Attempt {
            number: earlier.map_or(0, |earlier| earlier.attempts),
            first_sent_ns: earlier.map_or(self.clock.due_ns(), |earlier| earlier.first_sent_ns),
            sent_ns: self.clock.due_ns(),
        };
        self.ledger.set_deadline(tag, config.last_ns(attempt));
        let patience = config.patience(self.traffic.output_seeds()[tag as usize], attempt).at_most(cancels_at_ns);
        let (gives_up, may_retry) = (patience.ends(false), config.retry.is_some());
        if let Some((at_ns, _)) = gives_up {
            self.events.expect_give_up(at_ns, tag);
        }
        self.in_flight.get_mut(tag).client = Some(Box::new(Client { attempt, patience, gives_up, may_retry }));
    }

    /// Number of tokens after which the client cancels the request.
    pub(super) fn cancel_tokens(&self, tag: u64) -> Option<u32> {
        self.in_flight.get(tag).client.as_ref()?.patience.cancel_tokens()
    }

    /// Cancels a request for its client, unless its first token has arrived in the meantime: the client then
    /// waits for the rest.
    pub(super) fn give_up(&mut self, tag: u64) {
        let first_ns = self.ledger.record(tag).first_token_ns;
        let seen_ns = first_ns.map(|at_ns| at_ns.saturating_add(self.facts.overheads.answer_ns(1)));
        let has_first_token = seen_ns.is_some_and(|at_ns| at_ns <= self.clock.now_ns());
        let Some(client) = &mut self.in_flight.get_mut(tag).client else { return };
        let Some((_, reason)) = client.gives_up.take() else { return };
        if reason == GiveUp::FirstToken && has_first_token {
            client.gives_up = client.patience.ends(true);
            if let Some((at_ns, _)) = client.gives_up {
                self.events.expect_give_up(at_ns.max(self.clock.now_ns()), tag);
            }
            return;
        }
        self.take_back(tag, reason);
    }

    /// Cancels a request for its client.
    pub(super) fn take_back(&mut self, tag: u64, reason: GiveUp) {
        if self.compute_for_nobody(tag, reason) {
            return;
        }
        let uncomputed_tokens = self.uncomputed_tokens(tag);
        if !self.leave_kv(tag) {
            self.cancel_transfer(tag);
        }
        self.withdraw(tag, &(0..0));
        let uncomputed_tokens = uncomputed_tokens.saturating_sub(self.uncomputed_tokens(tag));
        self.ledger.waste_all(tag, uncomputed_tokens);
        self.end(tag, Outcome::GivenUp(reason));
    }

    /// Number of prompt tokens that the request's engine has not computed, over all its requests.
    fn uncomputed_tokens(&self, tag: u64) -> u64 {
        match self.in_flight.get(tag).stage {
            Stage::Prefill { worker, .. } | Stage::Decode { worker, .. } => {
                vcr_core::ServingEngine::load(self.fleet.worker(worker).engine()).outstanding_prefill_tokens
            }
            Stage::Waiting { .. } | Stage::Refused | Stage::Played { .. } | Stage::Answered => 0,
        }
    }

    /// Ends the client's wait for a request whose engine has finished. The client no longer cancels, and outputs in
    /// transit arrive. Returns the client's outcome; the client may have shortened the output.
    pub(super) fn end_wait(&mut self, tag: u64, outcome: Outcome) -> Outcome {
        let record = self.ledger.record(tag);
        let Some(client) = &mut self.in_flight.get_mut(tag).client else { return outcome };
        if let Some((at_ns, _)) = client.gives_up.take() {
            self.events.call_off_give_up(at_ns, tag);
        }
        let enough = client.patience.cancel_tokens().is_some_and(|tokens| record.output_tokens >= tokens);
        if outcome != Outcome::Completed || !enough || record.output_tokens >= record.max_tokens {
            return outcome;
        }
        self.ledger.waste_all(tag, 0);
        Outcome::GivenUp(GiveUp::Cancelled)
    }

    /// Schedules the client's next attempt if the client retries. Otherwise returns the request.
    pub(super) fn retry(&mut self, tag: u64, mut live: Box<Live>, outcome: Outcome) -> Option<Box<Live>> {
        let Some(client) = &live.client else { return Some(live) };
        let record = self.ledger.record(tag);
        let seed = self.traffic.output_seeds()[tag as usize];
        let attempt = client.attempt;
        let config = self.traffic.client(record.workload);
        let Some(at_ns) = config.next_attempt_ns(seed, attempt, outcome, self.clock.now_ns()) else {
            return Some(live);
        };
        let turn = Turn {
            prompt: live.take_prompt(),
            max_tokens: record.max_tokens,
            stop_after: live.stop_after,
            priority: live.priority,
            strict_priority: live.strict_priority,
            policy_class: live.policy_class,
            class: record.class,
            adapter: record.adapter,
            session: record.session,
            turn: record.turn,
            earlier: Some(Earlier { attempts: attempt.number + 1, first_sent_ns: attempt.first_sent_ns }),
            follow_up: live.follow_up,
            played_row: None,
        };
        self.traffic.expect_attempt(at_ns, tag, record.workload, turn, &mut self.events);
        None
    }

    /// Sends the next attempt of a client.
    pub(super) fn try_again(&mut self, after: u64) -> Result<(), SimError> {
        match self.traffic.next_attempt(after) {
            Some((workload, turn)) => self.arrive(workload, turn),
            None => Ok(()),
        }
    }
}
