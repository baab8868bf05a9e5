//! Requests that are answered as recorded: they arrive, and what they got comes
//! when it came. No engine, router or fault has a part in them.

use vcr_trace::AnswerEnd;

use crate::event::Event;
use crate::record::{FailReason, Outcome};
use crate::sim::{Simulation, Stage};

impl Simulation<'_> {
    /// A request of row `row` of its workload's trace has arrived.
    pub(crate) fn start_playing(&mut self, tag: u64, row: u32) {
        let record = &mut self.records[tag as usize];
        let answer = self.workloads[record.workload as usize].answer_times(row);
        record.cached_tokens = answer.times.cached_tokens.min(record.prompt_tokens);
        let queue_ns = answer.queue_ns().min(answer.after_ns(0));
        record.scheduled_ns = answer.num_tokens(0).map(|_| record.arrival_ns.saturating_add(queue_ns));
        let at_ns = record.arrival_ns.saturating_add(answer.after_ns(0));
        self.live_mut(tag).stage = Stage::Played { row, next_output: 0 };
        self.events.push(at_ns, Event::Played { tag });
    }

    /// The next output of such a request, or its end.
    pub(crate) fn play(&mut self, tag: u64) {
        let Stage::Played { row, next_output } = self.live_mut(tag).stage else {
            unreachable!("only played requests have such events");
        };
        let record = &self.records[tag as usize];
        let answer = self.workloads[record.workload as usize].answer_times(row);
        let Some(num_tokens) = answer.num_tokens(next_output) else {
            match answer.times.end {
                AnswerEnd::Whole => self.complete(tag),
                AnswerEnd::Aborted => self.end(tag, Outcome::Failed(FailReason::Aborted)),
                AnswerEnd::Failed => self.end(tag, Outcome::Failed(FailReason::Recorded)),
            }
            return;
        };
        let next_ns = record.arrival_ns.saturating_add(answer.after_ns(next_output + 1));
        self.live_mut(tag).stage = Stage::Played { row, next_output: next_output + 1 };
        // No engine has computed it, so no router waits to hear of it.
        let _first = self.give_tokens(tag, num_tokens);
        self.events.push(next_ns.max(self.now_ns), Event::Played { tag });
    }
}
