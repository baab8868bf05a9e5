//! Steps derived from a capture of `vcr record`: the tokens of one engine message belong to one step.
//!
//! The engine sends a message at the end of each step. If an answer got a token in two consecutive messages,
//! the engine did not pause, so the time between the messages is the duration of a step. The answers that got
//! tokens, and their prompts, determine the contents of the step. Steps that compute only part of a prompt, and steps
//! around a preemption, are left out, because no answer got a token for that work.

use std::collections::BTreeMap;

use vcr_fitted::{StepWork, UNKNOWN_TOKENS};

use crate::measurements::recorded::{RecordedStep, RecordedSteps};
use crate::measurements::steplog::pairs;

/// A request whose outputs have one token each.
#[derive(Clone, Debug)]
pub(crate) struct Emitter {
    pub(crate) rank: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) admitted_ns: Option<u64>,
    pub(crate) token_ns: Vec<u64>,
    pub(crate) was_preempted: bool,
}

/// When a message left the engine, and when it reached the recorder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageTime {
    pub(crate) rank: u32,
    /// By the recorder's clock.
    pub(crate) at_ns: u64,
    /// By the engine's clock.
    pub(crate) engine_ns: u64,
}

/// The tokens of an engine message.
#[derive(Default)]
struct Message {
    work: StepWork,
    /// Whether some answer has tokens in both the previous message and this one.
    follows: bool,
    /// Whether part of the work is unknown, or does not belong to this step.
    is_partial: bool,
}

/// Gives tokens of one message the same time; None if the message of a request's first token is unknown. Without
/// messages the times stay.
///
/// A recorder takes the time to the first token from its own clock and the gaps from the engine's clock. So the times
/// of one message's tokens differ by the delays of the requests' first messages. Here, all times are those of the
/// engine, moved to the recorder's clock by the shortest delay of a message.
pub(crate) fn at_messages(mut emitters: Vec<Emitter>, messages: &[MessageTime]) -> Option<Vec<Emitter>> {
    if messages.is_empty() {
        return Some(emitters);
    }
    let mut engines: BTreeMap<u32, (i128, BTreeMap<u64, i128>)> = BTreeMap::new();
    for message in messages {
        let late_ns = i128::from(message.at_ns) - i128::from(message.engine_ns);
        let (least_ns, late) = engines.entry(message.rank).or_insert((late_ns, BTreeMap::new()));
        *least_ns = late_ns.min(*least_ns);
        late.insert(message.at_ns, late_ns);
    }
    for emitter in &mut emitters {
        let Some(first_ns) = emitter.token_ns.first() else { continue };
        let (least_ns, late) = engines.get(&emitter.rank)?;
        let earlier_ns = u64::try_from(late.get(first_ns)? - least_ns).ok()?;
        emitter.token_ns.iter_mut().for_each(|ns| *ns = ns.saturating_sub(earlier_ns));
    }
    Some(emitters)
}

/// The steps of all engines.
pub(crate) fn steps(emitters: &[Emitter], max_num_batched_tokens: u64, is_async: bool) -> RecordedSteps {
    let mut engines: BTreeMap<u32, BTreeMap<u64, Message>> = BTreeMap::new();
    for emitter in emitters {
        let messages = engines.entry(emitter.rank).or_default();
        for token_ns in &emitter.token_ns {
            messages.entry(*token_ns).or_default();
        }
    }
    for (rank, messages) in &mut engines {
        let times: Vec<u64> = messages.keys().copied().collect();
        for emitter in emitters.iter().filter(|emitter| emitter.rank == *rank) {
            emit(emitter, &times, messages, is_async);
        }
        mark_full(&times, messages, max_num_batched_tokens);
    }
    let recorded = |messages: BTreeMap<u64, Message>| {
        let mut last_ns = 0;
        let of = |(end_ns, message): (u64, Message)| {
            let start_ns = std::mem::replace(&mut last_ns, end_ns);
            RecordedStep {
                start_ns: if message.follows { start_ns } else { end_ns },
                end_ns,
                work: StepWork { kv_distinct_tokens: UNKNOWN_TOKENS, ..message.work },
                follows: message.follows,
                is_compared: message.follows && !message.is_partial,
            }
        };
        messages.into_iter().map(of).collect()
    };
    engines.into_values().map(recorded).collect()
}

/// Adds a request's work to the messages of its engine.
fn emit(emitter: &Emitter, times: &[u64], messages: &mut BTreeMap<u64, Message>, is_async: bool) {
    let place = |ns: u64| times.partition_point(|time_ns| *time_ns < ns);
    let mut mark = |from: usize, to: usize| {
        for ns in &times[from..to] {
            messages.entry(*ns).or_default().is_partial = true;
        }
    };
    let Some(&first_ns) = emitter.token_ns.first() else { return };
    let first = place(first_ns);
    // If the request was admitted more than a step before its first token, parts of the prompt were computed earlier.
    // Under async scheduling, a step is decided while the previous one computes.
    let admitted = emitter.admitted_ns.map_or(first, |ns| times.partition_point(|time_ns| *time_ns <= ns));
    if admitted + usize::from(is_async) < first {
        mark(admitted, first + 1);
    }
    if emitter.was_preempted {
        let last = emitter.token_ns.last().map_or(first, |ns| place(*ns));
        mark(first, last + 1);
    }
    let rest = u64::from(emitter.prompt_tokens - emitter.cached_tokens.min(emitter.prompt_tokens - 1));
    let mut before: Option<usize> = None;
    for (index, token_ns) in emitter.token_ns.iter().enumerate() {
        let at = place(*token_ns);
        // A token is missing, so the steps in between are unknown.
        let is_missed = before.is_some_and(|before| at > before + 1);
        let message = messages.entry(*token_ns).or_default();
        message.work.sampled_requests += 1;
        if index == 0 {
            message.work.prefill_requests += 1;
            message.work.prefill_tokens += rest;
            let cached = u64::from(emitter.prompt_tokens) - rest;
            message.work.prefill_context_tokens += cached;
            message.work.prefill_attention_pairs += pairs(rest, cached);
        } else {
            message.work.decode_tokens += 1;
            message.work.decode_context_tokens += u64::from(emitter.prompt_tokens) + index as u64 - 1;
            message.follows |= !is_missed;
        }
        if let Some(before) = before.filter(|_| is_missed) {
            for ns in &times[before + 1..=at] {
                messages.entry(*ns).or_default().is_partial = true;
            }
        }
        before = Some(at);
    }
}

/// Marks messages that have more tokens than a step can have. Such a message stands for several steps, and so may the
/// message before it.
fn mark_full(times: &[u64], messages: &mut BTreeMap<u64, Message>, max_num_batched_tokens: u64) {
    for (index, ns) in times.iter().enumerate() {
        let work = &messages[ns].work;
        if work.prefill_tokens + work.decode_tokens > max_num_batched_tokens {
            for ns in &times[index.saturating_sub(1)..=index] {
                messages.entry(*ns).or_default().is_partial = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitter(prompt_tokens: u32, admitted_ns: u64, token_ns: &[u64]) -> Emitter {
        Emitter {
            rank: 0,
            prompt_tokens,
            cached_tokens: 0,
            admitted_ns: Some(admitted_ns),
            token_ns: token_ns.to_vec(),
            was_preempted: false,
        }
    }

    #[test]
    fn tokens_of_one_message_are_a_step() {
        let emitters = [emitter(100, 1, &[50, 60, 72, 90]), emitter(30, 61, &[72, 90])];
        let steps = steps(&emitters, 2048, false).remove(0);
        let told: Vec<_> = steps.iter().map(|s| (s.start_ns, s.end_ns, s.is_compared)).collect();
        assert_eq!(told, [(50, 50, false), (50, 60, true), (60, 72, true), (72, 90, true)]);
        let mixed = steps[2].work;
        assert_eq!((mixed.prefill_tokens, mixed.decode_tokens, mixed.decode_context_tokens), (30, 1, 101));
        assert_eq!(steps[3].work.decode_context_tokens, 102 + 30);
    }

    #[test]
    fn tokens_of_one_message_have_one_time() {
        // The engine sends at 1000, 1010 and 1020; the messages take 5, 9 and 7 ns.
        let message = |at_ns, engine_ns| MessageTime { rank: 0, at_ns, engine_ns };
        let messages = [message(105, 1000), message(119, 1010), message(127, 1020)];
        let emitters = vec![emitter(100, 80, &[105, 115, 125]), emitter(30, 104, &[119, 129])];
        let aligned = at_messages(emitters.clone(), &messages).expect("both messages are known");
        let times: Vec<_> = aligned.iter().map(|one| one.token_ns.as_slice()).collect();
        assert_eq!(times, [[105, 115, 125].as_slice(), &[115, 125]]);
        assert_eq!(steps(&aligned, 2048, false)[0].len(), 3);
        assert!(at_messages(emitters.clone(), &messages[..1]).is_none());
        let unchanged = at_messages(emitters, &[]).expect("none is needed");
        assert_eq!(unchanged[1].token_ns, [119, 129]);
    }

    #[test]
    fn unseen_work_is_not_compared() {
        let compared = |emitters: &[Emitter], budget: u64| -> Vec<bool> {
            steps(emitters, budget, false).remove(0).iter().map(|step| step.is_compared).collect()
        };
        let decoding = emitter(10, 1, &[50, 60, 72, 90, 99]);
        let chunked = emitter(30, 55, &[72, 90]);
        assert_eq!(compared(&[decoding, chunked], 2048), [false, false, false, true, true]);
        let decoding = emitter(10, 1, &[50, 60, 72, 90, 99]);
        assert_eq!(compared(&[decoding, emitter(30, 61, &[72])], 20), [false, false, false, true, true]);
        // The second request has no token at 60 and 72.
        let both = [emitter(10, 1, &[50, 60, 72, 90, 99]), emitter(9, 1, &[50, 90, 99])];
        assert_eq!(compared(&both, 2048), [false, false, false, false, true]);
        let preempted = Emitter { was_preempted: true, ..emitter(10, 1, &[50, 60, 72]) };
        assert_eq!(compared(&[preempted], 2048), [false; 3]);
    }
}
