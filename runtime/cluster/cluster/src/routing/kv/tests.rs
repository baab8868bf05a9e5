use super::*;
use crate::config::{IslBucket, QueueConfig, QueueOrder, QueueProfile, ReplicaConfig, RouterConfig};
use crate::routing::PoolRouter;
use vcr_core::KvTier;
use vcr_core::hash::ChainHasher;
use vcr_core::route::RoutePhase;

const BLOCK: u32 = 16;

fn facts(workers: u32, role: PoolRole) -> PoolFacts {
    PoolFacts { workers, block_size_tokens: BLOCK, max_num_batched_tokens: 100, role, has_tiers: false }
}

fn router(config: KvRouterConfig, workers: u32) -> KvRouter {
    KvRouter::new(config, facts(workers, PoolRole::Aggregated), 7)
}

fn blocks(content: u32, count: u32) -> Vec<BlockHash> {
    let mut hasher = ChainHasher::new(1, u64::from(content));
    (0..count).filter_map(|token| hasher.push_token(token)).collect()
}

fn query(now_ns: u64, request: u64, blocks: &[BlockHash]) -> RouteInput<'_> {
    let query = RouteRequest {
        now_ns,
        id: request,
        prompt_tokens: blocks.len() as u32 * BLOCK,
        max_tokens: 1,
        priority: 0,
        adapter: None,
        tenant: 0,
        slo: Default::default(),
        session: 0,
        block_size_tokens: BLOCK,
        phase: RoutePhase::Whole,
        may_refuse: true,
        block_hashes: blocks,
    };
    RouteInput { query, arrival_ns: now_ns, strict_priority: 0, policy_class: None }
}

fn up(overlaps: &[u32]) -> Vec<Candidate> {
    (0..)
        .zip(overlaps)
        .map(|(worker, &overlap_blocks)| Candidate { worker, overlap_blocks, ..Candidate::default() })
        .collect()
}

fn chosen(router: &mut KvRouter, query: &RouteInput<'_>, overlaps: &[u32]) -> Option<u32> {
    match router.choose(query, &mut up(overlaps)) {
        Routed::To(to) => Some(to.worker),
        Routed::Queued | Routed::Shed | Routed::Nowhere => None,
    }
}

#[test]
fn a_cached_prefix_outweighs_load_until_it_does_not() {
    let mut router = router(KvRouterConfig::default(), 2);
    let prompt = blocks(1, 4);
    // Worker 1 has the whole prompt cached, so the costs are 4 + 4 blocks on worker 0 and 0 + 4 on worker 1.
    assert_eq!(chosen(&mut router, &query(0, 0, &prompt), &[0, 4]), Some(1));
    // Worker 1 now uses 4 blocks, but they are the prompt's own blocks: 0 + 4 again.
    assert_eq!(chosen(&mut router, &query(1, 1, &prompt), &[0, 4]), Some(1));
    // Another prompt finds 4 blocks in use on worker 1 and none on worker 0.
    assert_eq!(chosen(&mut router, &query(2, 2, &blocks(2, 4)), &[0, 0]), Some(0));
}

#[test]
fn prompt_tokens_count_until_the_first_token_and_blocks_until_the_end() {
    let mut router = router(KvRouterConfig::default(), 2);
    let first = chosen(&mut router, &query(0, 0, &blocks(1, 4)), &[0, 0]).unwrap();
    let books = |router: &KvRouter| {
        let account = router.replicas[0].books.account(first);
        (account.prefill_tokens, router.replicas[0].books.blocks_with(first, &[]), account.requests)
    };
    assert_eq!(books(&router), (64, 4, 1));
    router.prefilled(1, 0);
    assert_eq!(books(&router), (0, 4, 1));
    router.left(2, 0);
    router.left(3, 0);
    assert_eq!(books(&router), (0, 0, 0));
}

#[test]
fn the_blocks_of_outputs_count_where_asked() {
    let mut router = router(KvRouterConfig { track_output_blocks: true, ..KvRouterConfig::default() }, 1);
    chosen(&mut router, &query(0, 0, &blocks(1, 2)), &[0]);
    router.generated(1, 0, 40);
    assert_eq!(router.replicas[0].books.blocks_with(0, &[]), 4);
    router.left(2, 0);
    assert_eq!(router.replicas[0].books.blocks_with(0, &[]), 0);
}

#[test]
fn ties_fall_on_every_worker_and_the_same_way_again() {
    let draw = || {
        let mut router = router(KvRouterConfig::default(), 4);
        (0..64u64)
            .map(|request| {
                let worker = chosen(&mut router, &query(request, request, &blocks(request as u32, 2)), &[0; 4]);
                router.left(request, request);
                worker.unwrap()
            })
            .collect::<Vec<_>>()
    };
    let workers = draw();
    assert!((0..4).all(|worker| workers.contains(&worker)), "{workers:?}");
    assert_eq!(workers, draw());
}

#[test]
fn temperature_draws_the_cheaper_more_often() {
    let mut router = router(KvRouterConfig { temperature: 0.5, ..KvRouterConfig::default() }, 2);
    let mut cached = 0;
    for request in 0..400 {
        let prompt = blocks(1, 8);
        cached += u32::from(chosen(&mut router, &query(request, request, &prompt), &[0, 8]) == Some(1));
        router.left(request, request);
    }
    // The softmax weights are 1 and exp(-2).
    assert!((310..390).contains(&cached), "{cached}");
}

#[test]
fn late_events_are_seen_late() {
    let knowledge = KvKnowledge::Events { lag_ns: 10, at_step_end: false };
    let mut router = router(KvRouterConfig { knowledge, ..KvRouterConfig::default() }, 2);
    let prompt = blocks(1, 4);
    router.kv_event(5, 1, KvEvent::Stored { tag: 0, parent: None, blocks: &prompt, tokens: &[] });
    let overlap_at = |router: &mut KvRouter, now_ns| {
        let mut candidates = up(&[0, 0]);
        router.look_up(0, now_ns, &prompt, &mut candidates);
        candidates[1].overlap_blocks
    };
    assert_eq!(overlap_at(&mut router, 14), 0);
    assert_eq!(overlap_at(&mut router, 15), 4);
    router.kv_event(6, 1, KvEvent::Removed(prompt[3]));
    assert_eq!(overlap_at(&mut router, 16), 3);
    router.crashed(1);
    assert_eq!(overlap_at(&mut router, 17), 0);
}

#[test]
fn a_block_is_cached_as_long_as_there_is_a_copy() {
    let prompt = blocks(1, 4);
    let mut index = index::EventIndex::default();
    let cached_after = |index: &mut index::EventIndex, event| {
        index.expect(5, event);
        index.cached_blocks(5, &prompt)
    };
    let stored = KvEvent::Stored { tag: 0, parent: None, blocks: &prompt, tokens: &[] };
    assert_eq!(cached_after(&mut index, stored), 4);
    assert_eq!(cached_after(&mut index, stored), 4);
    assert_eq!(cached_after(&mut index, KvEvent::Removed(prompt[2])), 4);
    assert_eq!(cached_after(&mut index, KvEvent::Removed(prompt[2])), 2);
    assert_eq!(cached_after(&mut index, KvEvent::Removed(prompt[2])), 2);
    assert_eq!(cached_after(&mut index, KvEvent::Removed(prompt[0])), 2);
    assert_eq!(cached_after(&mut index, KvEvent::Cleared), 0);
}

#[test]
fn guesses_expire() {
    let knowledge = KvKnowledge::Predicted { ttl_ns: 100 };
    let mut router = router(KvRouterConfig { knowledge, ..KvRouterConfig::default() }, 2);
    let prompt = blocks(1, 4);
    let worker = chosen(&mut router, &query(0, 0, &prompt), &[0, 0]).unwrap();
    router.left(1, 0);
    let overlap = |router: &mut KvRouter, now_ns| {
        let mut candidates = up(&[0, 0]);
        router.look_up(0, now_ns, &prompt, &mut candidates);
        candidates[worker as usize].overlap_blocks
    };
    assert_eq!(overlap(&mut router, 99), 4);
    assert_eq!(overlap(&mut router, 100), 0);
}

fn with_queue(order: QueueOrder) -> KvRouter {
    let queue = Some(QueueConfig::single(0.5, order));
    router(KvRouterConfig { queue, ..KvRouterConfig::default() }, 1)
}

/// Returns the order in which requests leave a queue that holds them while more than 50 tokens are outstanding.
fn leave(order: QueueOrder) -> Vec<u64> {
    let mut router = with_queue(order);
    let lengths = [4, 6, 5, 8];
    for (request, length) in (0..).zip(lengths) {
        let routed = chosen(&mut router, &query(request, request, &blocks(request as u32, length)), &[0]);
        assert_eq!(routed.is_some(), request == 0);
    }
    let mut left = Vec::new();
    let mut done = 0;
    loop {
        assert!(router.release_to(10, &up(&[0])).is_none(), "{done} is still busy");
        router.prefilled(10, done);
        let Some((request, _)) = router.release_to(10, &up(&[0])) else { return left };
        done = request;
        left.push(done);
    }
}

#[test]
fn a_queue_lets_them_out_one_prefill_at_a_time_in_its_order() {
    assert_eq!(leave(QueueOrder::Fcfs), [1, 2, 3]);
    assert_eq!(leave(QueueOrder::Lcfs), [3, 2, 1]);
    assert_eq!(leave(QueueOrder::Wspt), [2, 1, 3]);
}

#[test]
fn strict_priority_goes_first_and_nobody_passes_a_queue() {
    let mut router = with_queue(QueueOrder::Fcfs);
    let prompt = blocks(1, 8);
    assert_eq!(chosen(&mut router, &query(0, 0, &prompt), &[0]), Some(0));
    assert_eq!(chosen(&mut router, &query(1, 1, &prompt), &[0]), None);
    let urgent = RouteInput { strict_priority: 1, ..query(2, 2, &prompt) };
    assert_eq!(chosen(&mut router, &urgent, &[0]), None);
    router.prefilled(3, 0);
    // The engine is no longer busy, but other requests have waited longer.
    assert_eq!(chosen(&mut router, &query(3, 3, &prompt), &[0]), None);
    assert_eq!(router.release_to(3, &up(&[0])).map(|(request, _)| request), Some(2));
    assert!(router.release_to(3, &[]).is_none(), "no worker is up");
    assert_eq!(router.drain_queue(), [1, 3]);
}

#[test]
fn replicas_hear_of_each_other_late_or_never() {
    let seen = |sync_ns, now_ns| {
        let replicas = ReplicaConfig { count: 2, sync_ns };
        let mut router = router(KvRouterConfig { replicas, ..KvRouterConfig::default() }, 1);
        chosen(&mut router, &query(0, 0, &blocks(1, 4)), &[0]);
        router.catch_up(1, now_ns);
        router.replicas[1].books.account(0).requests
    };
    assert_eq!(seen(Some(10), 9), 0);
    assert_eq!(seen(Some(10), 10), 1);
    assert_eq!(seen(None, u64::MAX), 0);
}

#[test]
fn a_decode_router_counts_every_block_and_no_prompt_tokens() {
    let mut router = KvRouter::new(KvRouterConfig::default(), facts(2, PoolRole::Decode), 7);
    assert!(!router.needs_overlap());
    let prompt = blocks(1, 4);
    let first = chosen(&mut router, &query(0, 0, &prompt), &[0, 4]).unwrap();
    let account = router.replicas[0].books.account(first);
    assert_eq!(account.prefill_tokens, 0);
    // Equal prompts count as two requests there, so the second one goes to the other worker.
    assert_eq!(chosen(&mut router, &query(1, 1, &prompt), &[4, 4]), Some(1 - first));
}

/// A view that is never read would cost time for every event.
#[test]
fn a_decode_router_keeps_no_view_of_the_caches() {
    let late = KvKnowledge::Events { lag_ns: 10, at_step_end: true };
    for (knowledge, views) in [(late, (3, 0)), (KvKnowledge::Predicted { ttl_ns: 100 }, (0, 3))] {
        for role in [PoolRole::Aggregated, PoolRole::Prefill, PoolRole::Decode] {
            let config = KvRouterConfig { knowledge, ..KvRouterConfig::default() };
            let workers_report = role.needs_kv_events(&RouterConfig::Kv(config.clone()));
            let mut router = KvRouter::new(config, facts(3, role), 7);
            let kept = (router.events.len(), router.replicas[0].guesses.len());
            assert_eq!(kept, if role == PoolRole::Decode { (0, 0) } else { views }, "{role:?}");
            assert_eq!((router.needs_events(), workers_report), (kept.0 > 0, kept.0 > 0), "{role:?}");
            assert!(chosen(&mut router, &query(0, 0, &blocks(1, 4)), &[0, 0, 0]).is_some());
        }
    }
}

#[test]
fn numbers_out_of_range_are_named() {
    let check = |config: KvRouterConfig| config.check().unwrap_err();
    let default = KvRouterConfig::default;
    assert_eq!(
        check(KvRouterConfig { temperature: -1.0, ..default() }),
        "invalid `temperature`: expected a finite number of at least 0, got -1"
    );
    let replicas = ReplicaConfig { count: 0, sync_ns: None };
    assert_eq!(check(KvRouterConfig { replicas, ..default() }), "invalid `replicas`: expected 1 to 1000, got 0");
}

#[test]
fn blocks_below_the_device_count_by_their_weights() {
    let config =
        KvRouterConfig { host_cache_hit_weight: 0.5, disk_cache_hit_weight: 0.25, ..KvRouterConfig::default() };
    let facts = PoolFacts { has_tiers: true, ..facts(3, PoolRole::Aggregated) };
    let mut router = KvRouter::new(config, facts, 7);
    let prompt = blocks(1, 8);
    let tiers = |host_blocks, disk_blocks| TierRun { host_blocks, disk_blocks };
    let mut candidates = [
        Candidate { worker: 0, overlap_blocks: 2, tiers: tiers(0, 1) },
        Candidate { worker: 1, overlap_blocks: 1, tiers: tiers(2, 4) },
        Candidate { worker: 2, overlap_blocks: 0, tiers: tiers(3, 4) },
    ];
    // The candidates' hits are worth 2.25, 3 and 2.5 blocks of 8.
    let best = candidates[1];
    assert_eq!(router.choose(&query(0, 0, &prompt), &mut candidates), Routed::To(best.into()));
    assert_eq!(router.replicas[0].books.account(1).prefill_tokens, 5 * 16);
}

#[test]
fn changes_of_tiers_are_seen_late_and_a_crash_ends_them() {
    let lag_ns = 10;
    let config =
        KvRouterConfig { knowledge: KvKnowledge::Events { lag_ns, at_step_end: false }, ..KvRouterConfig::default() };
    let facts = PoolFacts { has_tiers: true, ..facts(2, PoolRole::Aggregated) };
    let mut router = KvRouter::new(config, facts, 7);
    let prompt = blocks(1, 3);
    let change = |at_ns, tier, block: usize, stored| KvTierChange { at_ns, tier, hash: prompt[block], stored };
    router.tier_change(1, change(0, KvTier::Host, 0, true));
    router.tier_change(1, change(0, KvTier::Host, 1, true));
    router.tier_change(1, change(5, KvTier::Host, 1, false));
    router.tier_change(1, change(7, KvTier::Disk, 1, true));
    let mut seen = |now_ns| {
        let mut candidates = up(&[0, 0]);
        router.look_up(0, now_ns, &prompt, &mut candidates);
        (candidates[1].tiers.host_blocks, candidates[1].tiers.disk_blocks)
    };
    assert_eq!([seen(9), seen(10), seen(15), seen(17)], [(0, 0), (2, 0), (1, 0), (1, 1)]);
    router.crashed(1);
    let mut candidates = up(&[0, 0]);
    router.look_up(0, 100, &prompt, &mut candidates);
    assert_eq!(candidates[1].tiers, TierRun::default());
}

fn class(name: &str, takes: Option<(&str, &str)>, quantum: u64) -> QueueClass {
    QueueClass {
        name: name.to_owned(),
        policy_family: takes.map(|(family, _)| family.to_owned()),
        cache_bucket: takes.map(|(_, bucket)| bucket.to_owned()),
        queue_policy: QueueOrder::Fcfs,
        admission: None,
        quantum,
        prefill_busy_threshold: Some(0),
        prefill_busy_threshold_frac: None,
        request_queue_limit_per_worker: None,
        raw_isl_token_queue_limit_per_worker: None,
        cached_token_queue_limit_per_worker: None,
    }
}

/// A profile with a bucket of up to 63 uncached tokens and a bucket of longer prompts.
fn profile(policy_classes: Vec<QueueClass>) -> QueueProfile {
    let bucket = |min_tokens, bucket: &str| IslBucket { min_tokens, bucket: bucket.to_owned() };
    QueueProfile {
        default_policy_family: "chat".to_owned(),
        uncached_isl_buckets: vec![bucket(0, "short"), bucket(64, "long")],
        policy_classes,
    }
}

fn with_classes(policy_classes: Vec<QueueClass>) -> KvRouter {
    let queue = Some(QueueConfig::with_classes(profile(policy_classes)).expect("valid classes"));
    router(KvRouterConfig { queue, ..KvRouterConfig::default() }, 1)
}

/// Returns the order in which requests leave the queue. Each leaves when the previous request has its first token.
/// Request 0 did not wait.
fn leaving(router: &mut KvRouter) -> Vec<u64> {
    let mut left = Vec::new();
    let mut done = 0;
    loop {
        router.prefilled(1_000, done);
        let Some((request, _)) = router.release_to(1_000, &up(&[0])) else { return left };
        done = request;
        left.push(done);
    }
}

#[test]
fn classes_share_what_leaves_by_their_quanta() {
    let classes = |chat, batch| {
        vec![
            class("chat_short", Some(("chat", "short")), chat),
            class("chat_long", Some(("chat", "long")), chat),
            class("batch", None, batch),
        ]
    };
    let order = |chat, batch| {
        let mut router = with_classes(classes(chat, batch));
        for request in 0..9u64 {
            let prompt = blocks(request as u32, 2);
            let asks = if request > 0 && request % 2 == 0 { Some("batch") } else { None };
            let query = RouteInput { policy_class: asks, ..query(request, request, &prompt) };
            assert_eq!(chosen(&mut router, &query, &[0]).is_some(), request == 0);
        }
        leaving(&mut router)
    };
    // All prompts have 32 tokens. The quanta send one of each class in turn, two to one, or one class before the
    // other.
    assert_eq!(order(32, 32), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(order(64, 32), [1, 3, 2, 5, 7, 4, 6, 8]);
    assert_eq!(order(1, 1_000), [2, 4, 6, 8, 1, 3, 5, 7]);
}

#[test]
fn a_family_is_sorted_by_what_is_to_be_computed() {
    let classes = || {
        vec![
            QueueClass { prefill_busy_threshold: None, ..class("a", Some(("chat", "short")), 1) },
            class("b", Some(("chat", "long")), 1),
            QueueClass { prefill_busy_threshold: Some(500), ..class("c", Some(("batch", "short")), 1) },
            class("d", Some(("batch", "long")), 1),
            class("own", None, 1),
        ]
    };
    let waits = |asks, overlap_blocks| {
        let mut router = with_classes(classes());
        chosen(&mut router, &query(0, 0, &blocks(0, 8)), &[0]);
        let prompt = blocks(1, 8);
        let query = RouteInput { policy_class: asks, ..query(1, 1, &prompt) };
        chosen(&mut router, &query, &[overlap_blocks]).is_none()
    };
    // 4 or 5 of 8 blocks are cached: 64 uncached tokens are long, 48 are short.
    assert_eq!([waits(None, 4), waits(None, 5)], [true, false]);
    assert_eq!([waits(Some("batch"), 4), waits(Some("batch"), 5)], [true, false]);
    // Requests cannot name a class that belongs to a family. A class without a family is only reached by name.
    assert_eq!([waits(Some("a"), 4), waits(Some("b"), 5), waits(Some("own"), 8)], [true, false, true]);
}

#[test]
fn limits_count_what_waits_for_each_engine_that_is_up() {
    let all = |limited: QueueClass| {
        let short = QueueClass { name: "short".to_owned(), ..limited.clone() };
        with_classes(vec![
            QueueClass { cache_bucket: Some("short".to_owned()), policy_family: Some("chat".to_owned()), ..short },
            QueueClass { cache_bucket: Some("long".to_owned()), policy_family: Some("chat".to_owned()), ..limited },
        ])
    };
    // Each request has 32 tokens, of which one block of 16 is cached.
    let taken = |limited, engines: usize| {
        let mut router = all(limited);
        for worker in 0..engines as u32 {
            router.book(0, 0, Entry::Sent { request: 90, worker: 0, prefill_tokens: 5, chain: Chain::from([]) });
            assert_eq!(worker, 0, "the pool has one engine");
        }
        let prompt = blocks(1, 2);
        let route = |router: &mut KvRouter, request, may_refuse| {
            let mut query = query(request, request, &prompt);
            query.query.may_refuse = may_refuse;
            router.choose(&query, &mut up(&[1]))
        };
        let taken = (0..10).take_while(|&request| route(&mut router, request, true) == Routed::Queued).count();
        assert_eq!(route(&mut router, 20, true), Routed::Shed);
        assert_eq!(route(&mut router, 21, false), Routed::Queued, "it has been with an engine");
        taken
    };
    let base = || class("long", None, 1);
    assert_eq!(taken(QueueClass { request_queue_limit_per_worker: Some(3), ..base() }, 1), 3);
    // The request that exceeds a limit still waits.
    assert_eq!(taken(QueueClass { raw_isl_token_queue_limit_per_worker: Some(33), ..base() }, 1), 2);
    assert_eq!(taken(QueueClass { cached_token_queue_limit_per_worker: Some(17), ..base() }, 1), 2);
    assert_eq!(taken(QueueClass { request_queue_limit_per_worker: Some(0), ..base() }, 1), 0);
}
