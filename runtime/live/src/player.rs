//! Answers that come at recorded times.
//!
//! Such requests never enter the engine core: what each of them gets, and when
//! after its arrival, is written down, so they disturb neither each other nor
//! those that the core schedules. What they would do to KV blocks is not
//! imitated; what they found in the cache is reported as recorded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use vcr_core::TokenSource;
use vcr_wire::{EngineCoreOutput, EventType};

use crate::answer::{add_extras, prefill_stats, reason_of_stop};
use crate::error::LiveError;
use crate::injector::Happened;
use crate::replay::{RecordedEnd, RecordedTimes};
use crate::requests::slot_of;
use crate::server::Server;
use crate::step::{Aftermath, planned_end};

/// A request that is answered at recorded times.
#[derive(Debug)]
struct Playing {
    arrived_ns: u64,
    times: RecordedTimes,
    end: RecordedEnd,
    next_output: usize,
}

impl Playing {
    /// When something happens to it next.
    fn due_ns(&self) -> u64 {
        let after_ns = self.times.outputs.get(self.next_output).map_or(self.times.end_ns, |output| output.after_ns);
        self.arrived_ns.saturating_add(after_ns)
    }
}

/// The requests of one engine that are answered at recorded times.
#[derive(Debug, Default)]
pub(crate) struct Player {
    playing: BTreeMap<u64, Playing>,
    num_silent: usize,
    /// When something happens, in which order, to whom; those that were aborted
    /// are passed over.
    due: BinaryHeap<Reverse<(u64, u64, u64)>>,
    num_scheduled: u64,
    tokens: Vec<u32>,
}

impl Player {
    pub(crate) fn len(&self) -> usize {
        self.playing.len()
    }

    /// Requests without output yet, and those with some.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.num_silent, self.playing.len() - self.num_silent)
    }

    /// Takes a request that arrives now.
    pub(crate) fn start(&mut self, tag: u64, now_ns: u64, times: RecordedTimes, end: RecordedEnd) {
        let playing = Playing { arrived_ns: now_ns, times, end, next_output: 0 };
        self.schedule(playing.due_ns(), tag);
        self.playing.insert(tag, playing);
        self.num_silent += 1;
    }

    fn schedule(&mut self, due_ns: u64, tag: u64) {
        self.num_scheduled += 1;
        self.due.push(Reverse((due_ns, self.num_scheduled, tag)));
    }

    /// Forgets a request.
    pub(crate) fn remove(&mut self, tag: u64) {
        if let Some(playing) = self.playing.remove(&tag) {
            self.num_silent -= usize::from(playing.next_output == 0);
        }
    }

    /// Everybody's tags.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.playing.keys().copied()
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, ..))| *due_ns)
    }

    /// The next request to which something has to happen by now.
    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        while let Some(&Reverse((due_ns, _, tag))) = self.due.peek()
            && due_ns <= now_ns
        {
            self.due.pop();
            if self.playing.contains_key(&tag) {
                return Some(tag);
            }
        }
        None
    }
}

impl Server {
    /// Requests that are not over, the engine core's and the others.
    pub(crate) fn num_unfinished(&self) -> usize {
        self.engine.num_unfinished() + self.player.len()
    }

    /// Answers what is due.
    pub(crate) fn play_due(&mut self, now_ns: u64) -> Result<(), LiveError> {
        if self.stalled_until_ns > now_ns || self.player.next_due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return Ok(());
        }
        let mut aftermath = Aftermath::default();
        while let Some(tag) = self.player.pop(now_ns) {
            self.play_one(tag, &mut aftermath);
        }
        self.is_shown = false;
        self.end_requests(&aftermath);
        self.send_step(self.config.stats.log_stats, None, now_ns)?;
        self.end_apart(&aftermath, now_ns)?;
        self.ask_injector(now_ns)?;
        for due in aftermath.due {
            self.suffer(due, now_ns)?;
        }
        Ok(())
    }

    /// The next output of a request, or its end.
    fn play_one(&mut self, tag: u64, aftermath: &mut Aftermath) {
        let player = &mut self.player;
        let (Some(playing), Some(request)) = (player.playing.get_mut(&tag), self.requests.get_mut(tag)) else { return };
        let Some(output) = playing.times.outputs.get(playing.next_output) else {
            aftermath.apart.push((tag, playing.end.reason));
            return;
        };
        player.num_silent -= usize::from(playing.next_output == 0);
        playing.next_output += 1;
        let own = &mut player.tokens;
        own.clear();
        own.extend((0..output.num_tokens).map(|index| self.tokens.token(tag, request.output_tokens + index)));
        request.output_tokens += output.num_tokens;
        self.counters.generation_tokens += u64::from(output.num_tokens);
        if self.injector.is_some() {
            let slot = slot_of(tag) as u32;
            self.happened.push(Happened::Emitted { slot, output_tokens: request.output_tokens });
        }
        let is_last = playing.next_output == playing.times.outputs.len();
        let finish = (is_last && playing.end.comes_with_tokens()).then_some(playing.end.reason);
        let admitted_ns = playing.arrived_ns + playing.times.queue_ns;
        let mut message = EngineCoreOutput::default();
        if std::mem::take(&mut request.is_silent) && self.config.stats.log_stats {
            request.event(EventType::Scheduled, admitted_ns as f64 / 1e9);
            message.prefill_stats = Some(prefill_stats(request, self.engine.config()));
            self.stats.looked_up(request.prompt_tokens.into(), request.local_cached_tokens.into());
        }
        let reason = planned_end(request, tag, finish, aftermath);
        if reason.is_none() {
            let due_ns = playing.due_ns();
            player.schedule(due_ns, tag);
        }
        let own = &player.tokens;
        message.request_id = String::from(&*request.id);
        message.new_token_ids.clone_from(own);
        message.finish_reason = reason;
        message.stop_reason = reason.and_then(|reason| reason_of_stop(request, reason, own));
        message.events = (!request.events.is_empty()).then(|| std::mem::take(&mut request.events));
        add_extras(request, own, self.tokens.vocab_size(), &mut message);
        if self.outputs.has_coordinator() && reason.is_some() {
            self.outputs.encoder(request.client).finished(&request.id);
        }
        self.outputs.encoder(request.client).output(&message);
    }
}
