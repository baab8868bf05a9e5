//! Random routers.

use proptest::prelude::*;
use vcr_cluster::{
    IslBucket, KvAwareConfig, KvKnowledge, KvRouterConfig, QueueClass, QueueConfig, QueueOrder, QueueProfile,
    ReplicaConfig, RouterConfig,
};
use vcr_policy::prefix_affinity::AffinityConfig;

use crate::support::MS;

pub(crate) fn arb_router() -> impl Strategy<Value = RouterConfig> {
    prop_oneof![
        Just(RouterConfig::RoundRobin),
        Just(RouterConfig::LeastLoaded),
        Just(RouterConfig::KvAware(KvAwareConfig::default())),
        Just(RouterConfig::PrefixAffinity(AffinityConfig { max_waiting: Some(1), ..AffinityConfig::default() })),
        arb_kv_router().prop_map(RouterConfig::Kv),
    ]
}

/// A class whose name and bucket are not set yet.
pub(crate) fn arb_queue_class() -> impl Strategy<Value = QueueClass> {
    let order = prop_oneof![Just(QueueOrder::Fcfs), Just(QueueOrder::Wspt)];
    (order, 1..5_000u64, proptest::option::of(0..2_000u64)).prop_map(|(queue_policy, quantum, threshold)| QueueClass {
        name: String::new(),
        policy_family: Some("any".to_owned()),
        cache_bucket: None,
        queue_policy,
        admission: None,
        quantum,
        prefill_busy_threshold: threshold,
        prefill_busy_threshold_frac: None,
        request_queue_limit_per_worker: None,
        raw_isl_token_queue_limit_per_worker: None,
        cached_token_queue_limit_per_worker: None,
    })
}

/// A queue with one class for short and one for long prompts.
pub(crate) fn two_classes(classes: [QueueClass; 2]) -> QueueConfig {
    let buckets = [("short", 0), ("long", 150)];
    let named = |(class, (name, _)): (QueueClass, (&str, u64))| QueueClass {
        name: name.to_owned(),
        cache_bucket: Some(name.to_owned()),
        ..class
    };
    QueueConfig::with_classes(QueueProfile {
        default_policy_family: "any".to_owned(),
        uncached_isl_buckets: buckets
            .map(|(bucket, min_tokens)| IslBucket { min_tokens, bucket: bucket.to_owned() })
            .to_vec(),
        policy_classes: classes.into_iter().zip(buckets).map(named).collect(),
    })
    .expect("valid classes")
}

pub(crate) fn arb_kv_router() -> impl Strategy<Value = KvRouterConfig> {
    let knowledge = prop_oneof![
        (prop_oneof![Just(0), 1..40 * MS], any::<bool>())
            .prop_map(|(lag_ns, at_step_end)| KvKnowledge::Events { lag_ns, at_step_end }),
        (1..400u64).prop_map(|ms| KvKnowledge::Predicted { ttl_ns: ms * MS }),
    ];
    let order = prop_oneof![Just(QueueOrder::Fcfs), Just(QueueOrder::Lcfs), Just(QueueOrder::Wspt)];
    let queue = prop_oneof![
        Just(None),
        (0.0..2.0f64, order).prop_map(|(threshold, order)| Some(QueueConfig::single(threshold, order))),
        proptest::array::uniform2(arb_queue_class()).prop_map(|classes| Some(two_classes(classes))),
    ];
    let replicas = (1..4u32, proptest::option::of(0..50 * MS));
    (knowledge, queue, replicas, any::<(bool, bool)>(), prop_oneof![Just(0.0), 0.1..2.0f64]).prop_map(
        |(knowledge, queue, (count, sync_ns), (track_output_blocks, assume_kv_reuse), temperature)| KvRouterConfig {
            knowledge,
            queue,
            replicas: ReplicaConfig { count, sync_ns },
            track_output_blocks,
            assume_kv_reuse,
            temperature,
            ..KvRouterConfig::default()
        },
    )
}
