//! Arrivals of requests. Most requests go to engines, some are answered as recorded.

use vcr_trace::AnswerEnd;

use super::{Simulation, WORK_PER_LIMIT_CHECK};
use crate::error::SimError;
use crate::event::Event;
use crate::in_flight::{Live, Stage};
use crate::ledger::record::{FailReason, Outcome, RequestRecord};
use crate::observe::Observer;
use crate::routing::RoutedTo;
use crate::traffic::{Start, Turn};

impl<O: Observer> Simulation<'_, O> {
    pub(super) fn start_session(&mut self, workload: u32) -> Result<(), SimError> {
        match self.traffic.start_session(workload, self.clock.due_ns(), &mut self.events) {
            Start::Turn(turn) => self.arrive(workload, turn),
            Start::Dropped => {
                self.ledger.drop_session(workload);
                Ok(())
            }
            Start::Nothing => Ok(()),
        }
    }

    pub(super) fn start_node(&mut self, workload: u32, node: u64) -> Result<(), SimError> {
        match self.traffic.start_node(workload, node, self.clock.due_ns(), &mut self.events) {
            Some(turn) => self.arrive(workload, turn),
            None => Ok(()),
        }
    }

    pub(super) fn continue_session(&mut self, slot: u32) -> Result<(), SimError> {
        match self.traffic.continue_session(slot) {
            Some((workload, turn)) => self.arrive(workload, turn),
            None => Ok(()),
        }
    }

    pub(super) fn arrive(&mut self, workload: u32, turn: Turn) -> Result<(), SimError> {
        let arrived = self.ledger.arrived();
        // Many sessions may arrive at one instant, so limits are also checked here.
        if arrived > 0 && arrived.is_multiple_of(WORK_PER_LIMIT_CHECK) {
            self.check_limits()?;
        }
        let played_row = turn.played_row;
        let (tag, queued_ns) = self.enter(workload, turn);
        if let Some(row) = played_row {
            self.start_playing(tag, row);
            return Ok(());
        }
        if queued_ns > self.clock.now_ns() {
            self.events.push(queued_ns, Event::Submitted { tag });
            return Ok(());
        }
        self.reach_queue(tag)
    }

    /// Handles a request that arrives with a given worker in the first pool.
    pub(super) fn arrive_at(&mut self, workload: u32, turn: Turn, to: RoutedTo) {
        let (tag, _) = self.enter(workload, turn);
        self.ledger.count_load(tag);
        let pool = self.fleet.first_role();
        let record = self.ledger.record(tag);
        match self.check(pool, record.prompt_tokens, self.tokens_of_part(tag, pool)) {
            Err(reason) if !self.is_rejected_in_queue(tag, pool) => self.end(tag, Outcome::Rejected(reason)),
            _ => self.place(tag, pool, to),
        }
    }

    /// Opens the record of a new request. Returns its tag, and the time at which it reaches the queue in front of
    /// the engines.
    pub(super) fn enter(&mut self, workload: u32, turn: Turn) -> (u64, u64) {
        self.clock.note_send_delay();
        let lengths = [turn.prompt.len_tokens(), turn.max_tokens];
        let played_row = turn.played_row;
        let way_ns = if played_row.is_some() { 0 } else { self.facts.overheads.arrival_of_ns(lengths[0]) };
        let queued_ns = self.clock.now_ns().saturating_add(way_ns);
        let record = RequestRecord {
            attempt: turn.earlier.map_or(0, |earlier| earlier.attempts),
            class: turn.class,
            adapter: turn.adapter,
            ..RequestRecord::new(workload, turn.session, turn.turn, lengths, [self.clock.due_ns(), queued_ns])
        };
        let earlier = turn.earlier;
        let tag = self.ledger.arrive(record);
        let first_open = self.ledger.first_open();
        self.in_flight.forget_before(first_open);
        self.traffic.forget_before(first_open);
        self.traffic.arrived(workload, &turn);
        self.in_flight.add(turn, self.fleet.first_role());
        self.begin_wait(tag, earlier);
        (tag, queued_ns)
    }

    /// Handles a request that reaches the queue in front of the engines.
    pub(super) fn reach_queue(&mut self, tag: u64) -> Result<(), SimError> {
        // The client may have cancelled the request in the meantime.
        if self.in_flight.find(tag).is_none() {
            return Ok(());
        }
        self.ledger.count_load(tag);
        self.dispatch(tag)
    }

    /// Begins to answer a request as recorded in row `row` of its workload's trace. Engines, routers and faults are
    /// not involved.
    fn start_playing(&mut self, tag: u64, row: u32) {
        let record = self.ledger.record(tag);
        let answer = self.traffic.answer_times(record.workload, row);
        let cached_tokens = answer.times.cached_tokens.min(record.prompt_tokens);
        let queue_ns = answer.queue_ns().min(answer.after_ns(0));
        let scheduled_ns = answer.num_tokens(0).map(|_| record.arrival_ns.saturating_add(queue_ns));
        let at_ns = record.arrival_ns.saturating_add(answer.after_ns(0));
        self.ledger.replay_admission(tag, scheduled_ns, cached_tokens);
        self.in_flight.get_mut(tag).stage = Stage::Played { row, next_output: 0 };
        self.events.push(at_ns, Event::Played { tag });
    }

    /// Plays the next output of a request with a recorded answer, or its end, unless the request has ended.
    pub(super) fn play(&mut self, tag: u64) {
        // The client may have cancelled the request.
        let Some(&Live { stage: Stage::Played { row, next_output }, .. }) = self.in_flight.find(tag) else { return };
        let record = self.ledger.record(tag);
        let answer = self.traffic.answer_times(record.workload, row);
        let Some(num_tokens) = answer.num_tokens(next_output) else {
            let outcome = match answer.times.end {
                AnswerEnd::Whole => Outcome::Completed,
                AnswerEnd::Aborted => Outcome::Failed(FailReason::Aborted),
                AnswerEnd::Failed => Outcome::Failed(FailReason::Recorded),
            };
            self.end(tag, outcome);
            return;
        };
        let next_ns = record.arrival_ns.saturating_add(answer.after_ns(next_output + 1));
        self.in_flight.get_mut(tag).stage = Stage::Played { row, next_output: next_output + 1 };
        // Routers need not see this first token, because no engine computed it.
        let _is_first = self.ledger.emit(tag, num_tokens, self.clock.now_ns());
        self.observation.tokens(tag, num_tokens, self.clock.now_ns());
        self.events.push(next_ns.max(self.clock.now_ns()), Event::Played { tag });
    }
}
