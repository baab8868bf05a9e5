//! Requests that have not ended, and their stages.

use std::ops::Range;

use vcr_core::plan::RemoteLoad;
use vcr_core::{Prompt, RequestId};

use crate::config::PoolRole;
use crate::ledger::record::GiveUp;
use crate::traffic::{Attempt, FollowUp, Patience, Turn};
use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In front of a pool: on the way to it, in its router's queue, or waiting for a worker to start.
    Waiting {
        pool: PoolRole,
    },
    /// On a worker that computes the prompt, and also the output unless another pool does.
    Prefill {
        worker: u32,
        id: RequestId,
    },
    Decode {
        worker: u32,
        id: RequestId,
    },
    /// No longer on a worker. The request can never run, and is rejected when the step that decided this ends.
    Refused,
    /// On no worker: the request is answered as recorded. `next_output` is the index of the next output.
    Played {
        row: u32,
        next_output: u32,
    },
    /// No longer on a worker. The request has ended there, and its answer is on the way to the client.
    Answered,
}

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) stage: Stage,
    /// Prefill worker that holds the KV to be transferred.
    pub(crate) source: Option<(u32, RequestId)>,
    /// Decode worker that has reserved blocks for the prompt, and the KV to be transferred to it.
    pub(crate) destination: Option<(u32, RemoteLoad)>,
    /// The prompt, if the request may be submitted again.
    pub(crate) prompt: Option<Prompt>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    /// Index of the policy class in the trace of the workload.
    pub(crate) policy_class: Option<u32>,
    pub(crate) follow_up: FollowUp,
    /// Number of output tokens before a stop token.
    pub(crate) stop_after: Option<u32>,
    pub(crate) client: Option<Box<Client>>,
    /// Whether the decode engine also computes the prompt.
    pub(crate) stays_with_decode: bool,
    /// Distinguishes transfers of this attempt from those of earlier attempts.
    pub(crate) attempt: u32,
    /// The worker that the request was last routed to in each pool, by index in the pool.
    pub(crate) routed: [Option<u32>; 2],
    /// The reason and the time of the client's cancellation, if the prompt is computed nevertheless.
    pub(crate) abandoned: Option<(GiveUp, u64)>,
}

impl Live {
    /// Whether one of these workers computes the request or holds blocks for it.
    pub(crate) fn is_at(&self, workers: &Range<u32>) -> bool {
        let on = match self.stage {
            Stage::Prefill { worker, .. } | Stage::Decode { worker, .. } => Some(worker),
            Stage::Waiting { .. } | Stage::Refused | Stage::Played { .. } | Stage::Answered => None,
        };
        let source = self.source.map(|(worker, _)| worker);
        let destination = self.destination.as_ref().map(|(worker, _)| *worker);
        [on, source, destination].into_iter().flatten().any(|worker| workers.contains(&worker))
    }

    /// Marks the request as abandoned by its client while its prompt continues to be computed. Returns the client's
    /// part of the state.
    pub(crate) fn leave(&mut self, reason: GiveUp, now_ns: u64) -> Box<Self> {
        self.abandoned = Some((reason, now_ns));
        Box::new(Self {
            stage: Stage::Answered,
            source: None,
            destination: None,
            prompt: self.prompt.take(),
            follow_up: std::mem::replace(&mut self.follow_up, FollowUp::None),
            client: self.client.take(),
            abandoned: None,
            ..*self
        })
    }

    /// Takes the prompt. The caller puts it back unless this is the last submission.
    pub(crate) fn take_prompt(&mut self) -> Prompt {
        self.prompt.take().expect("the prompt is kept until the last submission")
    }
}

/// A client that does not wait forever.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) attempt: Attempt,
    pub(crate) patience: Patience,
    /// When and why the client cancels the request in its current state.
    pub(crate) gives_up: Option<(u64, GiveUp)>,
    /// Whether the client may try again, for which the prompt is kept.
    pub(crate) may_retry: bool,
}

/// The requests of a run by tag; an ended request leaves an empty slot.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    requests: Window<Option<Box<Live>>>,
}

impl InFlight {
    /// Adds a request, which gets the next tag.
    pub(crate) fn add(&mut self, turn: Turn, pool: PoolRole) {
        self.requests.push(Some(Box::new(Live {
            stage: Stage::Waiting { pool },
            source: None,
            destination: None,
            prompt: Some(turn.prompt),
            priority: turn.priority,
            strict_priority: turn.strict_priority,
            policy_class: turn.policy_class,
            follow_up: turn.follow_up,
            stop_after: turn.stop_after,
            client: None,
            stays_with_decode: false,
            attempt: 0,
            routed: [None; 2],
            abandoned: None,
        })));
    }

    /// Finds a request that has not ended in the cluster.
    pub(crate) fn find(&self, tag: u64) -> Option<&Live> {
        self.requests.get(tag)?.as_deref().filter(|live| !matches!(live.stage, Stage::Answered))
    }

    pub(crate) fn get(&self, tag: u64) -> &Live {
        self.find(tag).expect("the request has not ended")
    }

    pub(crate) fn get_mut(&mut self, tag: u64) -> &mut Live {
        let live = self.requests.get_mut(tag).and_then(Option::as_deref_mut);
        live.expect("the request has not ended")
    }

    pub(crate) fn remove(&mut self, tag: u64) -> Box<Live> {
        self.requests.get_mut(tag).and_then(Option::take).expect("the request has not ended")
    }

    /// Forgets requests before `tag`, which must all have ended.
    pub(crate) fn forget_before(&mut self, tag: u64) {
        self.requests.advance(tag);
    }
}
