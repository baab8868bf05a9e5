use crate::prefix_affinity::config::{AffinityConfig, AffinityError};
use crate::routing::{Choice, RouteRequest, WorkerLoad};

fn requests(load: &WorkerLoad) -> u64 {
    u64::from(load.running_requests) + u64::from(load.waiting_requests)
}

/// The router: its checked config and its seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixAffinity {
    config: AffinityConfig,
    seed: u64,
    max_queue_tokens: Option<f64>,
}

/// Priorities beyond this, in either direction, do not change the limits any further.
const PRIORITIES_MAX: i32 = 64;

impl PrefixAffinity {
    /// A router. `seed` decides which engine each prefix goes to.
    pub fn new(config: AffinityConfig, seed: u64) -> Result<Self, AffinityError> {
        config.check()?;
        let max_queue_tokens = match (config.max_queue_ms, config.prefill_tokens_per_s) {
            (Some(ms), Some(speed)) => Some(ms * speed / 1000.0),
            _ => None,
        };
        Ok(Self { config, seed, max_queue_tokens })
    }

    /// Chooses one of `workers`, which must not be empty and must yield the same values in each
    /// iteration.
    #[must_use]
    pub fn choose(&self, request: &RouteRequest<'_>, workers: impl Iterator<Item = WorkerLoad> + Clone) -> Choice {
        let mut seen = Seen::default();
        for load in workers.clone() {
            seen.add(&load);
        }
        let most_requests = self.most_requests(&seen);
        if request.may_refuse && self.has_no_room(request.priority, &seen) {
            return Choice::Refuse;
        }
        let key = self.key(request.block_hashes).filter(|_| !seen.any_overlap);
        let first = workers.clone().next().map_or(0, |load| load.worker);
        let mut best: Option<(u32, Rank)> = None;
        for load in workers {
            let requests = requests(&load);
            if requests > most_requests {
                continue;
            }
            let rank = match key {
                Some(key) => Rank::of_home(key, load.worker),
                None => Rank::of_cost(self.cost(request, &load, requests), requests),
            };
            if best.is_none_or(|(_, other)| rank.is_before(&other)) {
                best = Some((load.worker, rank));
            }
        }
        // The least busy worker is always within the bound, because its factor is at least 1.
        Choice::Worker(best.map_or(first, |(worker, _)| worker))
    }

    /// Whether every engine exceeds its limits for a request of this priority.
    fn has_no_room(&self, priority: i32, seen: &Seen) -> bool {
        let share = self.share(priority);
        let waits = |most: u32| f64::from(seen.least_waiting) > f64::from(most) * share;
        let queues = |most: f64| seen.least_outstanding_tokens as f64 > most * share;
        self.config.max_waiting.is_some_and(waits) || self.max_queue_tokens.is_some_and(queues)
    }

    /// Factor for the limits at this priority. It is a product, because a power would need a math library.
    fn share(&self, priority: i32) -> f64 {
        let mut share = 1.0;
        for _ in 0..priority.clamp(-PRIORITIES_MAX, PRIORITIES_MAX).unsigned_abs() {
            share *= self.config.priority_factor;
        }
        if priority < 0 { 1.0 / share } else { share }
    }

    /// Hashing key of a prompt's beginning. None for a prompt without a full block.
    fn key(&self, blocks: &[u64]) -> Option<u64> {
        let last = blocks.len().min(self.config.prefix_blocks as usize).checked_sub(1)?;
        Some(mix(self.seed ^ blocks[last]))
    }

    /// Maximum number of requests on an engine that may take one more. Including the new request, an engine then has at
    /// most `load_factor` times the mean, rounded up.
    fn most_requests(&self, seen: &Seen) -> u64 {
        let bound = self.config.load_factor * (seen.requests + 1) as f64;
        let is_within = |requests: u64| ((requests.saturating_mul(seen.workers)) as f64) < bound;
        // The division may round up or down.
        let mut most = (bound / seen.workers as f64) as u64;
        while most > 0 && !is_within(most) {
            most -= 1;
        }
        while is_within(most + 1) {
            most += 1;
        }
        most
    }

    /// Number of prompt tokens that the engine would have to compute, plus a constant for
    /// each of its requests.
    fn cost(&self, request: &RouteRequest<'_>, load: &WorkerLoad, requests: u64) -> f64 {
        let to_compute = load.outstanding_prefill_tokens + u64::from(request.prompt_tokens);
        let cached = u64::from(load.cached_prompt_blocks) * u64::from(request.block_size_tokens);
        to_compute as f64 - self.config.overlap_weight * cached as f64 + self.config.request_tokens * requests as f64
    }
}

struct Seen {
    workers: u64,
    requests: u64,
    least_waiting: u32,
    least_outstanding_tokens: u64,
    any_overlap: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            workers: 0,
            requests: 0,
            least_waiting: u32::MAX,
            least_outstanding_tokens: u64::MAX,
            any_overlap: false,
        }
    }
}

impl Seen {
    fn add(&mut self, load: &WorkerLoad) {
        self.workers += 1;
        self.requests += requests(load);
        self.least_waiting = self.least_waiting.min(load.waiting_requests);
        self.least_outstanding_tokens = self.least_outstanding_tokens.min(load.outstanding_prefill_tokens);
        self.any_overlap |= load.cached_prompt_blocks > 0;
    }
}

/// Sort key of engines. Among equal keys, the first engine wins.
#[derive(Clone, Copy)]
struct Rank {
    cost: f64,
    /// Breaks ties of the cost; lower is better.
    then: u64,
}

impl Rank {
    fn of_home(key: u64, worker: u32) -> Self {
        Self { cost: 0.0, then: u64::MAX - mix(key ^ mix(u64::from(worker))) }
    }

    fn of_cost(cost: f64, requests: u64) -> Self {
        Self { cost, then: requests }
    }

    fn is_before(&self, other: &Self) -> bool {
        self.cost < other.cost || (self.cost == other.cost && self.then < other.then)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::string::ToString as _;
    use alloc::vec::Vec;

    use super::*;

    fn router(config: AffinityConfig) -> PrefixAffinity {
        PrefixAffinity::new(config, 7).expect("a good config")
    }

    fn idle(count: u32) -> Vec<WorkerLoad> {
        (0..count).map(|worker| WorkerLoad { worker, ..WorkerLoad::default() }).collect()
    }

    fn request(blocks: &[u64]) -> RouteRequest<'_> {
        let prompt_tokens = 16 * blocks.len() as u32 + 3;
        RouteRequest {
            prompt_tokens,
            block_size_tokens: 16,
            may_refuse: true,
            block_hashes: blocks,
            ..RouteRequest::default()
        }
    }

    fn choose(router: &PrefixAffinity, request: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Choice {
        router.choose(request, workers.iter().copied())
    }

    #[test]
    fn equal_beginnings_have_the_same_home_and_others_are_spread() {
        let router = router(AffinityConfig::default());
        let eight = idle(8);
        let mut homes = [0; 8];
        for prefix in 0..800 {
            let blocks = [1, 2, 3, prefix, 5];
            let Choice::Worker(home) = choose(&router, &request(&blocks), &eight) else { panic!("nothing is shed") };
            let longer = [1, 2, 3, prefix, 99, 100];
            assert_eq!(choose(&router, &request(&longer), &eight), Choice::Worker(home));
            homes[home as usize] += 1;
        }
        assert!(homes.iter().all(|count| (60..140).contains(count)), "{homes:?}");
    }

    #[test]
    fn an_engine_that_goes_moves_only_its_own() {
        let router = router(AffinityConfig::default());
        let eight = idle(8);
        let mut seven = eight.clone();
        seven.remove(3);
        for prefix in 0..200 {
            let blocks = [prefix; 4];
            let Choice::Worker(before) = choose(&router, &request(&blocks), &eight) else { panic!("not shed") };
            let Choice::Worker(after) = choose(&router, &request(&blocks), &seven) else { panic!("not shed") };
            assert!(before == 3 || after == before);
        }
    }

    #[test]
    fn the_cache_wins_until_load_outweighs_it() {
        let router = router(AffinityConfig { load_factor: 100.0, ..AffinityConfig::default() });
        let mut two = idle(2);
        two[1].cached_prompt_blocks = 10;
        let blocks = [5; 20];
        assert_eq!(choose(&router, &request(&blocks), &two), Choice::Worker(1));
        two[1].outstanding_prefill_tokens = 160;
        assert_eq!(choose(&router, &request(&blocks), &two), Choice::Worker(0), "a tie goes to the first");
        two[0].running_requests = 1;
        assert_eq!(choose(&router, &request(&blocks), &two), Choice::Worker(1), "a request is 128 tokens");
    }

    #[test]
    fn no_engine_is_busier_than_the_bound() {
        let router = router(AffinityConfig::default());
        let mut four = idle(4);
        let blocks = [9; 8];
        for _ in 0..400 {
            let Choice::Worker(choice) = choose(&router, &request(&blocks), &four) else { panic!("not shed") };
            four[choice as usize].running_requests += 1;
        }
        let most = four.iter().map(|load| load.running_requests).max();
        assert!(most <= Some(126), "one prefix, and yet 1.25 times the mean at most: {most:?}");
        assert_eq!(most, Some(125), "but up to that its home has all of it");
    }

    #[test]
    fn the_bound_in_whole_requests_is_that_of_the_mean() {
        for load_factor in [1.0, 1.1, 1.25, 3.0, 1e6] {
            let router = router(AffinityConfig { load_factor, ..AffinityConfig::default() });
            for (workers, requests) in [(1, 0), (3, 0), (3, 2), (7, 48), (10, 99), (64, 3_001), (5_000, 1 << 40)] {
                let seen = Seen { workers, requests, ..Seen::default() };
                let is_within =
                    |requests: u64| ((requests * workers) as f64) < load_factor * (seen.requests + 1) as f64;
                let most = router.most_requests(&seen);
                assert!(is_within(most) && !is_within(most + 1), "{load_factor} {workers} {requests}: {most}");
            }
        }
    }

    #[test]
    fn waiting_requests_shed_the_least_urgent_first() {
        let router = router(AffinityConfig { max_waiting: Some(8), ..AffinityConfig::default() });
        let mut two = idle(2);
        let blocks = [1; 4];
        let sheds = |two: &[WorkerLoad], priority, may_refuse| {
            choose(&router, &RouteRequest { priority, may_refuse, ..request(&blocks) }, two) == Choice::Refuse
        };
        two[0].waiting_requests = 100;
        two[1].waiting_requests = 5;
        assert!(!sheds(&two, 0, true) && !sheds(&two, -3, true));
        assert!(sheds(&two, 1, true), "the limit of priority 1 is 4");
        two[1].waiting_requests = 9;
        assert!(sheds(&two, 0, true) && !sheds(&two, -1, true));
        assert!(!sheds(&two, 0, false), "it has been with an engine");
        assert!(!sheds(&two, i32::MIN, true) && sheds(&two, i32::MAX, true));
    }

    #[test]
    fn long_queues_of_prompt_tokens_shed() {
        let limits = AffinityConfig {
            max_queue_ms: Some(500.0),
            prefill_tokens_per_s: Some(10_000.0),
            ..AffinityConfig::default()
        };
        let router = router(limits);
        let mut one = idle(1);
        let blocks = [1; 4];
        one[0].outstanding_prefill_tokens = 5_000;
        assert_eq!(choose(&router, &request(&blocks), &one), Choice::Worker(0));
        one[0].outstanding_prefill_tokens = 5_001;
        assert_eq!(choose(&router, &request(&blocks), &one), Choice::Refuse);
    }

    #[test]
    fn a_prompt_without_a_block_goes_to_the_cheapest() {
        let router = router(AffinityConfig { load_factor: 10.0, ..AffinityConfig::default() });
        let mut three = idle(3);
        three[0].running_requests = 2;
        three[1].outstanding_prefill_tokens = 100;
        assert_eq!(choose(&router, &request(&[]), &three), Choice::Worker(2));
    }

    #[test]
    fn mistakes_are_named() {
        let good = AffinityConfig::default();
        for (config, expected) in [
            (AffinityConfig { load_factor: 0.5, ..good }, "invalid `load_factor`: expected 1 to 1e6, got 0.5"),
            (
                AffinityConfig { overlap_weight: f64::NAN, ..good },
                "invalid `overlap_weight`: expected 0 to 1e6, got NaN",
            ),
            (AffinityConfig { prefix_blocks: 0, ..good }, "invalid `prefix_blocks`: expected at least 1, got 0"),
            (AffinityConfig { max_queue_ms: Some(1.0), ..good }, "a limit of the queue in time needs `prefill_"),
            (AffinityConfig { priority_factor: 0.0, ..good }, "invalid `priority_factor`: expected above 0"),
        ] {
            let error = PrefixAffinity::new(config, 1).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
