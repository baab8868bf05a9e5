//! Routes requests to engines that come and go, with sessions, shared prefixes,
//! failures and two kinds of pools.

use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table};
use crate::latest::{RouteCall, RouterInstance};

/// Requests of the workload.
const REQUESTS: u64 = 3_000;

/// Engines of the pool, running slots and KV blocks of each, and tokens in a block.
const WORKERS: usize = 8;
const RUNNING_SLOTS: u64 = 64;
const KV_BLOCKS: u64 = 4_000;
const BLOCK_TOKENS: u64 = 16;

/// The word of a request without an adapter.
const NO_LORA: u64 = u64::MAX;

/// The answer that refuses a request.
const REFUSED: u32 = u32::MAX;

/// The word of a request that says whether it may be refused.
const MAY_REFUSE: usize = 9;

/// Words of an engine in a call.
const WORKER_WORDS: usize = 8;

/// The workload of a router.
pub(super) struct Routing {
    draw: Draw,
    now_ns: u64,
    requests: u64,
    workers: [Worker; WORKERS],
    /// Requests that are with an engine.
    routed: Vec<Routed>,
    /// Requests whose engine died: they are routed again.
    homeless: Vec<Routed>,
    ended: Vec<u64>,
}

/// An engine of the pool.
#[derive(Clone, Default)]
struct Worker {
    is_down: bool,
    running: u64,
    blocks: u64,
    /// Roots of the prefixes that its cache holds, and how many blocks of each.
    cached: Vec<(u64, u64)>,
}

/// A request at an engine.
#[derive(Clone)]
struct Routed {
    /// Its words in a call, and the root and length of its prefix.
    request: [u64; 10],
    prefix: (u64, u64),
    worker: usize,
    output_tokens: u64,
}

impl Driver for Routing {
    type Instance = dyn RouterInstance;

    fn new(seed: u64, _split: Split) -> Self {
        Self {
            draw: Draw::new(seed, "routing"),
            now_ns: 0,
            requests: 0,
            workers: Default::default(),
            routed: Vec::new(),
            homeless: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn step(&mut self, table: &mut Table<'_, '_, dyn RouterInstance>) -> Result<Step, GuestFailure> {
        self.happen();
        let mut routed = match self.homeless.pop() {
            Some(mut routed) => {
                routed.request[MAY_REFUSE] = 0;
                routed
            }
            None if self.requests == REQUESTS => return Ok(Step::Over),
            None => self.arrive(),
        };
        let (root, blocks) = routed.prefix;
        let call = RouteCall {
            now_ns: self.now_ns,
            ended: std::mem::take(&mut self.ended),
            request: routed.request.to_vec(),
            // Equal prefixes have equal numbers, wherever they come from.
            blocks: (0..blocks).map(|index| vcr_core::seed::mix(root.wrapping_add(index))).collect(),
            workers: self.words(routed.prefix),
        };
        let items = call.blocks.len() + call.workers.len() / WORKER_WORDS;
        let budget = table.limits.budget(items, 0);
        let answer = table
            .meter
            .call("route", items, budget, table.instance, |instance, budget| instance.route(&call, budget))?;
        if answer == REFUSED {
            if routed.request[MAY_REFUSE] == 0 {
                return Err(GuestFailure::Answer(format!(
                    "it refused request {}, which has been with an engine before and must be taken",
                    routed.request[0]
                )));
            }
        } else {
            let chosen =
                usize::try_from(answer).ok().filter(|index| self.workers.get(*index).is_some_and(|w| !w.is_down));
            routed.worker = chosen.ok_or_else(|| GuestFailure::Answer(self.unknown_engine(answer)))?;
            self.take(routed);
        }
        Ok(Step::Answered(vec![u64::from(answer)]))
    }
}

impl Routing {
    /// Lets time pass: requests end, engines die and come back.
    fn happen(&mut self) {
        self.now_ns += self.draw.length(1_000, 50_000_000);
        while !self.routed.is_empty() && self.draw.once_in(2) {
            let index = self.draw.below(self.routed.len() as u64) as usize;
            let done = self.routed.swap_remove(index);
            let failed = u64::from(self.draw.once_in(40));
            self.leave(&done);
            self.ended.extend([done.request[0], done.worker as u64, done.output_tokens, failed]);
        }
        if self.draw.once_in(200) {
            let index = self.draw.below(WORKERS as u64) as usize;
            self.toggle(index);
        }
    }

    /// An engine dies, unless it is the last, or comes back empty.
    fn toggle(&mut self, index: usize) {
        if self.workers[index].is_down {
            self.workers[index].is_down = false;
        } else if self.workers.iter().filter(|worker| !worker.is_down).count() > 1 {
            self.workers[index] = Worker { is_down: true, ..Worker::default() };
            let (lost, kept) = self.routed.drain(..).partition(|routed| routed.worker == index);
            self.routed = kept;
            self.homeless.extend::<Vec<Routed>>(lost);
        }
    }

    /// Draws a request.
    fn arrive(&mut self) -> Routed {
        let draw = &mut self.draw;
        let session = draw.length(1, 400);
        let prefix = (vcr_core::seed::mix(session % 40), draw.length(1, 500));
        // A request that gets its KV from elsewhere has been with an engine.
        let role = if draw.once_in(4) { draw.within(1, 2) } else { 0 };
        let request = [
            self.requests,
            prefix.1 * BLOCK_TOKENS + draw.below(BLOCK_TOKENS),
            draw.length(1, 1_024),
            (draw.below(5) as i64 - 2).cast_unsigned(),
            if draw.once_in(6) { draw.below(4) } else { NO_LORA },
            draw.below(4),
            session,
            BLOCK_TOKENS,
            role,
            u64::from(role != 2),
        ];
        self.requests += 1;
        Routed { request, prefix, worker: 0, output_tokens: draw.within(1, request[2]) }
    }

    /// The words of every engine that is up.
    fn words(&self, (root, blocks): (u64, u64)) -> Vec<u64> {
        let up = self.workers.iter().enumerate().filter(|(_, worker)| !worker.is_down);
        up.flat_map(|(index, worker)| {
            let cached = worker.cached.iter().find(|(known, _)| *known == root).map_or(0, |(_, held)| *held);
            let waiting = worker.running.saturating_sub(RUNNING_SLOTS);
            [
                index as u64,
                worker.running - waiting,
                waiting,
                RUNNING_SLOTS,
                worker.blocks.min(KV_BLOCKS),
                KV_BLOCKS,
                waiting * 500,
                cached.min(blocks),
            ]
        })
        .collect()
    }

    fn take(&mut self, routed: Routed) {
        let worker = &mut self.workers[routed.worker];
        worker.running += 1;
        worker.blocks += routed.prefix.1;
        let (root, blocks) = routed.prefix;
        match worker.cached.iter_mut().find(|(known, _)| *known == root) {
            Some((_, held)) => *held = (*held).max(blocks),
            None => worker.cached.push((root, blocks)),
        }
        self.routed.push(routed);
    }

    fn leave(&mut self, routed: &Routed) {
        let worker = &mut self.workers[routed.worker];
        worker.running -= 1;
        worker.blocks -= routed.prefix.1;
    }

    #[cold]
    fn unknown_engine(&self, answer: u32) -> String {
        let up: Vec<String> =
            (0..WORKERS).filter(|index| !self.workers[*index].is_down).map(|index| index.to_string()).collect();
        format!("it chose engine {answer}: expected one of {}", up.join(", "))
    }
}
