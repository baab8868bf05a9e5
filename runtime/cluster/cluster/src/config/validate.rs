//! Validation of a run before it begins, beyond its types.

use vcr_core::{ACCEPTANCE_RATES, EngineKind, KvCacheGroup};
use vcr_trace::Trace;

use super::{
    Answers, Arrivals, FaultKind, Gaps, KvEviction, Limit, PoolConfig, ProfileConfig, RequestClass, RouterConfig,
    RunConfig, ScalingConfig, Topology, TracePacing, WorkloadConfig, WorkloadSource,
};

/// Limits against mistyped numbers: a larger run would fill the memory before it began.
const MAX_ENGINES: u64 = 100_000;
const MAX_BLOCKS: u64 = 250_000_000;
const MAX_STARTS: u64 = 100_000_000;
const MAX_IN_FLIGHT: u64 = 10_000_000;

/// Minimum interval between an autoscaler's decisions. With shorter intervals, decisions would take most of a run.
const SHORTEST_INTERVAL_NS: u64 = 1_000_000;

/// A problem of a [`RunConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct RunConfigError {
    /// The part of the run that has the problem.
    pub place: String,
    /// The problem and its remedy.
    pub problem: String,
}

fn groups_of(pool: &PoolConfig) -> &[KvCacheGroup] {
    pool.engine.as_vllm().map_or(&[], |engine| engine.kv_cache_groups())
}

impl RunConfig {
    /// Checks that the future use of a pool's cached blocks can be known.
    fn check_forecast(&self, pool: &PoolConfig) -> Result<(), &'static str> {
        let is_possible = pool.engine.as_vllm().is_some_and(|engine| {
            engine.enable_prefix_caching() && engine.kv_cache_groups().is_empty() && engine.kv_connector().is_none()
        });
        if !is_possible {
            return Err(
                "eviction by `belady` needs vLLM's or TensorRT-LLM's scheduler with prefix caching and one group of layers",
            );
        }
        if !self.workloads.iter().all(WorkloadConfig::starts_by_itself) {
            return Err(
                "eviction by `belady` needs requests that start at times of their own, which are known before the run",
            );
        }
        if !self.faults.is_empty() || pool.scaling.is_some() || pool.failures.is_some() {
            return Err("eviction by `belady` needs engines that exist for the whole run, without faults and scaling");
        }
        Ok(())
    }

    /// [`RunConfig::check`] for a run that receives requests from outside.
    pub(crate) fn check_open(&self) -> Result<(), Vec<RunConfigError>> {
        let with_belady = self.topology.pools().into_iter().find(|pool| pool.kv_eviction == KvEviction::Belady);
        if let Some(pool) = with_belady {
            let problem = "eviction by `belady` needs requests that are known before the run".to_owned();
            return Err(vec![RunConfigError { place: format!("pool `{}`", pool.name), problem }]);
        }
        self.check()
    }

    /// Checks the rules that types cannot express.
    pub fn check(&self) -> Result<(), Vec<RunConfigError>> {
        let mut errors = Vec::new();
        let mut problem = |place: String, text: &str| {
            errors.push(RunConfigError { place, problem: text.to_owned() });
        };
        let pools = self.topology.pools();
        for pool in &pools {
            if pool.engines == 0 {
                problem(format!("pool `{}`", pool.name), "invalid `engines`: expected at least 1");
            }
            if pool.data_parallel.size == 0 {
                problem(format!("pool `{}`", pool.name), "engines must have at least 1 data-parallel rank");
            }
            if let EngineKind::Sglang(engine) = &pool.engine
                && engine.prefill_decode_interval() > 0
                && pool.data_parallel.size > 1
                && !pool.has_barrier()
            {
                let text = "`prefill_decode_interval` needs ranks that step together, which count together";
                problem(format!("pool `{}`", pool.name), text);
            }
            if pool.prefill_schedule_interval != 1 {
                let is_possible = matches!(&pool.engine, EngineKind::Vllm(engine) if !engine.async_scheduling());
                if pool.prefill_schedule_interval == 0 || !is_possible {
                    let text = "invalid `prefill_schedule_interval`: expected at least 1, and 1 but with vLLM's scheduler and \
                                without `async_scheduling`";
                    problem(format!("pool `{}`", pool.name), text);
                }
            }
            if pool.kv_eviction == KvEviction::Belady
                && let Err(text) = self.check_forecast(pool)
            {
                problem(format!("pool `{}`", pool.name), text);
            }
            if let Some(scaling) = &pool.scaling {
                scaling.check(pool.engines, &mut |text| problem(format!("scaling of pool `{}`", pool.name), text));
            }
            if pool.policy.is_some() != pool.engine.is_ranked() {
                let text = "has a scheduling policy that its engines do not follow, or none that they could";
                problem(format!("pool `{}`", pool.name), text);
            }
            if pools.len() > 1 && !pool.engine.transfers_kv() {
                let text = "its engines cannot take KV from others or hand it on; use them in a cluster of one pool";
                problem(format!("pool `{}`", pool.name), text);
            }
            if matches!(&pool.router, RouterConfig::Sticky(_)) && pool.router.has_queue() {
                let text = "`sticky` sends requests to the engine of their session at once; `queue_threshold` and \
                            `queue_policies` of its `kv_router` would hold them back";
                problem(format!("router of pool `{}`", pool.name), text);
            }
            if let Some(config) = pool.router.kv()
                && let Err(text) = config.check()
            {
                problem(format!("router of pool `{}`", pool.name), &text);
            }
            if let Some(text) = ACCEPTANCE_RATES.problem(&pool.acceptance_rates) {
                problem(format!("pool `{}`", pool.name), &text);
            }
        }
        let ranks: u64 = pools.iter().map(|pool| u64::from(pool.most_ranks())).sum();
        if ranks > MAX_ENGINES {
            let text = format!("has {ranks} engines; at most {MAX_ENGINES} are simulated, and a rank counts as one");
            problem("cluster".to_owned(), &text);
        }
        let blocks_of = |pool: &&PoolConfig| {
            let ranks = u64::from(pool.most_ranks());
            let tiers = pool.engine.kv_tiers().map_or(0, |tiers| tiers.blocks_of(ranks));
            ranks.saturating_mul(u64::from(pool.engine.num_blocks())).saturating_add(tiers)
        };
        let blocks: u64 = pools.iter().map(blocks_of).sum();
        if blocks > MAX_BLOCKS {
            let text = format!("has {blocks} KV blocks in all; at most {MAX_BLOCKS} are simulated");
            problem("cluster".to_owned(), &text);
        }
        if let [prefill, decode] = pools[..]
            && prefill.engine.block_size() != decode.engine.block_size()
        {
            problem("cluster".to_owned(), "prefill and decode engines must have the same `block_size`");
        }
        if let [prefill, decode] = pools[..]
            && groups_of(prefill) != groups_of(decode)
        {
            problem("cluster".to_owned(), "prefill and decode engines must have the same `kv_cache_groups`");
        }
        if let [prefill, decode] = pools[..]
            && [prefill, decode].iter().any(|pool| pool.engine.hashed_blocks().lookahead_tokens > 0)
        {
            problem(
                "cluster".to_owned(),
                "engines with EAGLE or MTP that transfer KV need `disable_lookahead_block_hashes`: vLLM's KV connectors do \
                 without hashes of tokens after a block",
            );
        }
        if let [prefill, decode] = pools[..]
            && prefill.name == decode.name
        {
            problem(
                "cluster".to_owned(),
                "two pools have the same `name`; faults and reports could not distinguish them",
            );
        }
        if let Topology::Disaggregated { link, .. } = &self.topology
            && link.bandwidth_bytes_per_s == Some(0)
        {
            problem("link".to_owned(), "invalid `bandwidth`: expected above 0; leave it out for instant transfers");
        }
        if let Topology::Disaggregated { prefill, decode, link, .. } = &self.topology
            && let Some(hold_ns) = link.cancellation.hold_ns()
        {
            if hold_ns == 0 {
                problem("link".to_owned(), "invalid `abort_timeout`: expected above 0");
            }
            let follows_vllm = |pool: &PoolConfig| {
                let engine = &pool.engine;
                engine.as_vllm().is_some() && !engine.reserves_before_prefill()
            };
            if !follows_vllm(prefill) || !follows_vllm(decode) {
                let text = "`prefill_cancel_until` \"handoff\" and \"never\" are how vLLM's connectors hold KV: both \
                            pools need vLLM's engine, without reservations as in Dynamo's mocker";
                problem("link".to_owned(), text);
            }
        }
        if let Some(config) = self.topology.conditional()
            && let Err(text) = config.check()
        {
            problem("conditional disaggregation".to_owned(), &text);
        }
        if let [prefill, _] = pools[..]
            && prefill.tokens.is_some()
        {
            let text = "`tokens` belongs to the decode pool: no token of a prefill pool is shown to anyone";
            problem(format!("pool `{}`", prefill.name), text);
        }
        if self.workloads.is_empty() {
            problem("run".to_owned(), "needs at least one workload");
        }
        if self.workloads.iter().any(|workload| workload.structured.is_some()) {
            for pool in pools.iter().filter(|pool| !pool.engine.simulates_structured_outputs()) {
                let text = "`structured_outputs` of requests are simulated only by vLLM's engine, without tiers or \
                            reservations as in Dynamo's mocker";
                problem(format!("pool `{}`", pool.name), text);
            }
        }
        for workload in &self.workloads {
            workload.check(&mut |text| problem(format!("workload `{}`", workload.name), text));
        }
        let warms = |workload: &WorkloadConfig| workload.profile().is_some_and(|profile| profile.warmup_requests > 0);
        if self.workloads.len() > 1 && self.workloads.iter().any(warms) {
            problem("run".to_owned(), "a warm-up is not measured, so a run with one has no other workload");
        }
        if self.workloads.iter().all(|workload| workload.is_warm_up) && !self.workloads.is_empty() {
            problem("run".to_owned(), "needs a workload that is measured after the warm-up");
        }
        for (index, fault) in self.faults.iter().enumerate() {
            let place = format!("fault {}", index + 1);
            match self.topology.pool(fault.pool) {
                None => problem(place, &format!("names the {} pool, which does not exist", fault.pool.name())),
                Some(pool) if fault.engine >= pool.most_engines() => {
                    let text = format!(
                        "names engine {} of pool `{}`, which has engines 0 to {}",
                        fault.engine,
                        pool.name,
                        pool.most_engines().saturating_sub(1)
                    );
                    problem(place, &text);
                }
                Some(_) => {
                    if let FaultKind::SlowDown { factor, .. } = fault.kind
                        && !(factor.is_finite() && factor > 0.0)
                    {
                        problem(place, "invalid `factor`: expected a finite number above 0");
                    }
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

impl ScalingConfig {
    fn check(&self, engines: u32, problem: &mut dyn FnMut(&str)) {
        let Self { min_engines, max_engines, .. } = *self;
        if self.interval_ns < SHORTEST_INTERVAL_NS {
            problem("invalid `interval`: expected at least 1 ms");
        }
        if min_engines > max_engines {
            problem(&format!("`min` is {min_engines}, but must not exceed `max`, which is {max_engines}"));
        } else if !(min_engines..=max_engines).contains(&engines) {
            problem(&format!(
                "the pool starts with {engines} engines, but `min` is {min_engines} and `max` {max_engines}"
            ));
        }
    }
}

impl WorkloadConfig {
    fn check(&self, problem: &mut dyn FnMut(&str)) {
        self.client.check(problem);
        if let Some(structured) = &self.structured {
            structured.check(problem);
        }
        let positive = |value: f64| value.is_finite() && value > 0.0;
        match &self.source {
            WorkloadSource::Synthetic { arrivals, classes } => {
                arrivals.check(problem);
                if self.client.max_in_flight.is_some()
                    && matches!(arrivals, Arrivals::ClosedLoop { .. } | Arrivals::Users { .. })
                {
                    problem("`max_in_flight` limits open loops; this one has a number of users already");
                }
                if classes.is_empty() || classes.iter().map(|class| class.weight).sum::<f64>() <= 0.0 {
                    problem("needs at least one class of requests with a weight above 0");
                }
                classes.iter().for_each(|class| class.check(problem));
            }
            WorkloadSource::Generated(input) => {
                for wrong in input.check().err().unwrap_or_default() {
                    problem(&wrong.to_string());
                }
                if let Some(concurrency) = input.replay_concurrency {
                    check_most("concurrency", concurrency, MAX_IN_FLIGHT, problem);
                    if self.client.max_in_flight.is_some() {
                        problem("`max_in_flight` limits open loops; this one has a number of sessions already");
                    }
                }
            }
            WorkloadSource::Trace { trace, pacing, copies, answers, .. } => {
                if trace.requests.is_empty() {
                    problem("the trace has no requests");
                }
                if self.client != super::ClientConfig::default() && *answers == Answers::Recorded {
                    problem("clients of recorded answers do as recorded; `timeout` and the like need simulated ones");
                }
                if self.client.max_in_flight.is_some()
                    && (trace.has_free_turns || !matches!(pacing, TracePacing::Recorded { .. }))
                {
                    problem("`max_in_flight` limits open loops whose sessions do not wait for each other");
                }
                if *answers == Answers::Recorded && trace.answer_times.len() != trace.requests.len() {
                    problem("the trace was read without the times of its answers");
                }
                if *copies == 0 {
                    problem("invalid `copies`: expected at least 1");
                }
                check_most("copies", u64::from(*copies), MAX_STARTS / trace.requests.len().max(1) as u64, problem);
                if let TracePacing::ClosedLoop { concurrency, .. } = pacing {
                    check_most("concurrency", *concurrency, MAX_IN_FLIGHT, problem);
                }
                if let TracePacing::Profile(profile) = pacing {
                    profile.check(trace, *copies, *answers, problem);
                }
                if !positive(pacing.speedup()) {
                    problem("invalid `speedup`: expected a finite number above 0");
                }
                if matches!(pacing, TracePacing::ClosedLoop { concurrency: 0, .. }) {
                    problem("invalid `concurrency`: expected at least 1");
                }
            }
        }
    }
}

impl ProfileConfig {
    fn check(&self, trace: &Trace, copies: u32, answers: Answers, problem: &mut dyn FnMut(&str)) {
        if self.lanes == 0 {
            problem("invalid `lanes`: expected at least 1");
        }
        check_most("lanes", u64::from(self.lanes), MAX_IN_FLIGHT, problem);
        check_most("warmup_requests", u64::from(self.warmup_requests), 1_000_000, problem);
        if copies != 1 {
            problem("`copies` are for traces without lanes, which repeat a trace as long as they have time");
        }
        if answers == Answers::Recorded {
            problem("recorded answers come at recorded times, which lanes do not have");
        }
        if trace.is_delta {
            problem("turns of the trace have only their new tokens, which lanes cannot continue; give whole prompts");
        }
        if self.duration_ns == Some(0) {
            problem("invalid `duration`: expected above 0");
        }
        if self.duration_ns.is_none() && self.grace_ns > 0 {
            problem("`grace` is for a `duration`");
        }
        if self.snapshot_seed.is_some() && trace.requests.iter().any(|request| request.arrival_ns.is_none()) {
            problem("snapshots need to know when each request was sent, which only some traces of agents state");
        }
    }
}

impl Arrivals {
    fn check(&self, problem: &mut dyn FnMut(&str)) {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        match self {
            Self::Burst { count: 0, .. } => problem("invalid `count`: expected at least 1"),
            Self::Burst { count, .. } => check_most("count", *count, MAX_STARTS, problem),
            Self::Constant { rate_per_s, limit } | Self::Poisson { rate_per_s, limit } => {
                if !positive(*rate_per_s) {
                    problem("invalid `rate`: expected a finite number above 0");
                }
                limit.check(problem);
            }
            Self::Varying { rate, gaps, limit } => {
                rate.check("rate", problem);
                if let Gaps::Gamma { shape } | Gaps::Weibull { shape } = gaps
                    && !(0.01..=1e6).contains(shape)
                {
                    problem("invalid `burstiness`: expected 0.01 to 1000000");
                }
                limit.check_beside(rate.duration_ns().is_some(), problem);
            }
            Self::ClosedLoop { concurrency, limit } => {
                if *concurrency == 0 {
                    problem("invalid `concurrency`: expected at least 1");
                }
                check_most("concurrency", *concurrency, MAX_IN_FLIGHT, problem);
                limit.check(problem);
            }
            Self::Users { users, limit } => {
                users.check("number of users", problem);
                check_most("concurrency", users.peak() as u64, MAX_IN_FLIGHT, problem);
                limit.check_beside(users.duration_ns().is_some(), problem);
            }
        }
    }
}

impl RequestClass {
    fn check(&self, problem: &mut dyn FnMut(&str)) {
        if !(self.weight.is_finite() && self.weight >= 0.0) {
            problem("invalid `weight` of a class: expected a finite number of at least 0");
        }
        if self.mix.shared_prefix_tokens > 0 && self.mix.prefix_groups == 0 {
            problem("invalid `prefix_groups`: expected at least 1 with a shared prefix");
        }
        if let Some(conversations) = &self.mix.conversations
            && (conversations.turns.is_empty() || conversations.turns.iter().any(Vec::is_empty))
        {
            problem("the data set has no conversations, or one without turns");
        }
        if let Some(media) = &self.mix.media {
            check_most("tokens_per_item", u64::from(media.tokens_per_item), 10_000_000, problem);
            if media.distinct == Some(0) {
                problem("invalid `distinct`: expected at least 1");
            }
        }
    }
}

fn check_most(name: &str, value: u64, most: u64, problem: &mut dyn FnMut(&str)) {
    if value > most {
        problem(&format!("`{name}` is {value}, but at most {most} can be simulated"));
    }
}

impl Limit {
    fn check(self, problem: &mut dyn FnMut(&str)) {
        self.check_beside(false, problem);
    }

    /// Checks the limit of starts. `has_end` says that the starts end even without a limit.
    fn check_beside(self, has_end: bool, problem: &mut dyn FnMut(&str)) {
        if !has_end && self.count.is_none() && self.duration_ns.is_none() {
            problem("needs an end: give `count`, `duration`, or both");
        }
        check_most("count", self.count.unwrap_or(0), MAX_STARTS, problem);
        if self.count == Some(0) || self.duration_ns == Some(0) {
            problem("invalid `count` or `duration`: expected above 0");
        }
    }
}
