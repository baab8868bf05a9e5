//! Routes requests to engines that start and crash, with sessions, shared prefixes, failures and two kinds of pools.

use vcr_core::route::{Choice, EndedRequest, RoutePhase, RouteRequest, WorkerLoad};

use crate::adapters::router;
use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table, input};
use crate::latest::{RouteCall, RouterInstance};

/// Number of requests.
const REQUESTS: u64 = 3_000;

/// Number of engines; running slots and KV blocks of each; tokens in a block.
const WORKERS: usize = 8;
const RUNNING_SLOTS: u64 = 64;
const KV_BLOCKS: u64 = 4_000;
const BLOCK_TOKENS: u64 = 16;

/// The word that stands for a refused request.
const REFUSED: u64 = u64::MAX;

pub(super) struct Routing {
    draw: Draw,
    now_ns: u64,
    requests: u64,
    workers: [Worker; WORKERS],
    /// Requests that are at an engine.
    routed: Vec<Routed>,
    /// Requests whose engine crashed: they are routed again.
    homeless: Vec<Routed>,
    ended: Vec<EndedRequest>,
}

#[derive(Clone, Default)]
struct Worker {
    is_down: bool,
    running: u64,
    blocks: u64,
    /// Root of each prefix in the engine's cache, and its number of cached blocks.
    cached: Vec<(u64, u64)>,
}

#[derive(Clone)]
struct Routed {
    /// The request, without its block hashes and the time.
    query: RouteRequest<'static>,
    /// Root of the request's prefix, and its length in blocks.
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
                routed.query.may_refuse = false;
                routed
            }
            None if self.requests == REQUESTS => return Ok(Step::Over),
            None => self.arrive(),
        };
        let (root, blocks) = routed.prefix;
        let ended = std::mem::take(&mut self.ended);
        let workers = self.workers(routed.prefix);
        // Equal prefixes have equal hashes in all requests.
        let blocks: Vec<u64> = (0..blocks).map(|index| vcr_core::seed::mix(root.wrapping_add(index))).collect();
        let query = RouteRequest { now_ns: self.now_ns, block_hashes: &blocks, ..routed.query };
        let items = blocks.len() + workers.len();
        let budget = table.limits.budget(items, 0);
        let call = RouteCall { ended: &ended, query: &query, workers: &workers };
        let answer =
            table.meter.call("route", items, budget, table.instance, |instance, budget| instance.route(call, budget));
        let checked = answer.and_then(|answer| router::accept(answer, &query, &workers));
        let choice = table.meter.explained("route", checked, || input::route(&call))?;
        let Choice::Worker(worker) = choice else {
            return Ok(Step::Answered(vec![REFUSED]));
        };
        routed.worker = worker as usize;
        self.take(routed);
        Ok(Step::Answered(vec![worker.into()]))
    }

    fn show(word: u64) -> String {
        if word == REFUSED { "a refusal".to_owned() } else { format!("engine {word}") }
    }
}

impl Routing {
    /// Lets time pass: requests end, engines crash and restart.
    fn happen(&mut self) {
        self.now_ns += self.draw.length(1_000, 50_000_000);
        while !self.routed.is_empty() && self.draw.once_in(2) {
            let index = self.draw.below(self.routed.len() as u64) as usize;
            let done = self.routed.swap_remove(index);
            let failed = self.draw.once_in(40);
            self.leave(&done);
            self.ended.push(EndedRequest {
                id: done.query.id,
                worker: done.worker as u32,
                output_tokens: done.output_tokens as u32,
                failed,
                ttft_ns: (done.output_tokens > 0).then_some(self.now_ns / 3),
            });
        }
        if self.draw.once_in(200) {
            let index = self.draw.below(WORKERS as u64) as usize;
            self.toggle(index);
        }
    }

    /// Crashes an engine, unless it is the last one, or restarts it with an empty cache.
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

    fn arrive(&mut self) -> Routed {
        let draw = &mut self.draw;
        let session = draw.length(1, 400);
        let prefix = (vcr_core::seed::mix(session % 40), draw.length(1, 500));
        // Only a request that was at another engine before can receive its KV blocks.
        let phase = match draw.below(8) {
            0 => RoutePhase::Prefill,
            1 => RoutePhase::Decode,
            _ => RoutePhase::Whole,
        };
        let max_tokens = draw.length(1, 1_024);
        let query = RouteRequest {
            now_ns: 0,
            id: self.requests,
            prompt_tokens: (prefix.1 * BLOCK_TOKENS + draw.below(BLOCK_TOKENS)) as u32,
            max_tokens: max_tokens as u32,
            priority: draw.below(5) as i32 - 2,
            adapter: draw.once_in(6).then(|| draw.below(4) as u32),
            tenant: draw.below(4),
            session,
            slo: draw.slo(),
            block_size_tokens: BLOCK_TOKENS as u32,
            phase,
            may_refuse: phase != RoutePhase::Decode,
            block_hashes: &[],
        };
        self.requests += 1;
        Routed { query, prefix, worker: 0, output_tokens: draw.within(1, max_tokens) }
    }

    /// The loads of the engines that are up.
    fn workers(&self, (root, blocks): (u64, u64)) -> Vec<WorkerLoad> {
        let up = self.workers.iter().enumerate().filter(|(_, worker)| !worker.is_down);
        // Half of the prefixes are also in the tiers.
        let tiered_blocks = if root.is_multiple_of(2) { blocks } else { 0 };
        up.map(|(index, worker)| {
            let cached = worker.cached.iter().find(|(known, _)| *known == root).map_or(0, |(_, held)| *held);
            let waiting = worker.running.saturating_sub(RUNNING_SLOTS);
            WorkerLoad {
                worker: index as u32,
                running_requests: (worker.running - waiting) as u32,
                waiting_requests: waiting as u32,
                max_running_requests: RUNNING_SLOTS as u32,
                active_blocks: worker.blocks.min(KV_BLOCKS) as u32,
                total_blocks: KV_BLOCKS as u32,
                outstanding_prefill_tokens: waiting * 500,
                cached_prompt_blocks: cached.min(blocks) as u32,
                host_prompt_blocks: (tiered_blocks.saturating_sub(cached) / 2) as u32,
                disk_prompt_blocks: (tiered_blocks.saturating_sub(cached) / 4) as u32,
                loading_requests: (waiting / 3) as u32,
                last_step_ns: worker.running * 250_000,
                preemption_count: waiting / 2,
            }
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
}
