//! Requests that have not ended, and their places.

use std::ops::Range;

use vcr_core::plan::RemoteLoad;
use vcr_core::{Prompt, RequestId};

use crate::config::PoolRole;
use crate::ledger::record::GiveUp;
use crate::traffic::{Attempt, FollowUp, Patience, Turn};
use crate::window::Window;

/// Stage of a live request in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In front of a pool: being transferred there, in its router's queue, or waiting for a worker to start.
    Waiting {
        pool: PoolRole,
    },
    /// On a worker that computes its prompt (and, unless another pool does this, its output).
    Prefill {
        worker: u32,
        id: RequestId,
    },
    Decode {
        worker: u32,
        id: RequestId,
    },
    /// On no worker any more: it can never run, and is rejected when the step that decided this
    /// ends.
    Refused,
    /// On no worker: the recorded answer is played. This is the index of the next output.
    Played {
        row: u32,
        next_output: u32,
    },
    /// On no worker: it has ended there, and its answer is being sent to the client.
    Answered,
}

/// The state of a request until it ends.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) stage: Stage,
    /// Prefill worker that holds the KV to be transferred.
    pub(crate) source: Option<(u32, RequestId)>,
    /// Decode worker that has taken blocks for the prompt while it is still being computed
    /// elsewhere, and the KV to be transferred.
    pub(crate) destination: Option<(u32, RemoteLoad)>,
    /// The prompt, if the request may be submitted again.
    pub(crate) prompt: Option<Prompt>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    /// Index among the classes of its workload's trace.
    pub(crate) policy_class: Option<u32>,
    pub(crate) follow_up: FollowUp,
    /// Number of output tokens before a stop token.
    pub(crate) stop_after: Option<u32>,
    /// Its client's timeouts and cancellations, if any.
    pub(crate) client: Option<Box<Client>>,
    /// Whether the decode engine computes its prompt, too.
    pub(crate) stays_with_decode: bool,
    /// Distinguishes transfers of this attempt from transfers of earlier attempts.
    pub(crate) attempt: u32,
    /// The worker of each pool that it was last routed to, by index in the pool.
    pub(crate) routed: [Option<u32>; 2],
    /// Why and when its client has left, if its prompt is computed nevertheless.
    pub(crate) abandoned: Option<(GiveUp, u64)>,
}

impl Live {
    /// Whether one of these workers computes it or holds blocks for it.
    pub(crate) fn is_at(&self, workers: &Range<u32>) -> bool {
        let on = match self.stage {
            Stage::Prefill { worker, .. } | Stage::Decode { worker, .. } => Some(worker),
            Stage::Waiting { .. } | Stage::Refused | Stage::Played { .. } | Stage::Answered => None,
        };
        let source = self.source.map(|(worker, _)| worker);
        let destination = self.destination.as_ref().map(|(worker, _)| *worker);
        [on, source, destination].into_iter().flatten().any(|worker| workers.contains(&worker))
    }

    /// Its client leaves while the prompt continues to be computed. Returns the client's part of
    /// the state.
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

    /// Takes the prompt, which is put back unless this is the last submission.
    pub(crate) fn take_prompt(&mut self) -> Prompt {
        self.prompt.take().expect("the prompt is kept until the last submission")
    }
}

/// The client of a request, if it does not wait forever.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) attempt: Attempt,
    pub(crate) patience: Patience,
    /// When its client cancels it, in the current state.
    pub(crate) gives_up: Option<(u64, GiveUp)>,
    /// Whether it may try again, so that the prompt is kept.
    pub(crate) may_retry: bool,
}

/// The requests of a run by tag; ended requests leave an empty slot.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    requests: Window<Option<Box<Live>>>,
}

impl InFlight {
    /// Adds a request, which has the next tag.
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

    /// A request, unless it has ended, even if its client does not know yet.
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

    /// Takes a request out, which has ended.
    pub(crate) fn remove(&mut self, tag: u64) -> Box<Live> {
        self.requests.get_mut(tag).and_then(Option::take).expect("the request has not ended")
    }

    /// Forgets requests before `tag`, which have all ended.
    pub(crate) fn forget_before(&mut self, tag: u64) {
        self.requests.advance(tag);
    }
}
