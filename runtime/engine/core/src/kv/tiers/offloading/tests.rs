use proptest::prelude::*;

use super::*;
use crate::config::rules::SchedulerRules;

const BLOCK_TOKENS: u32 = 4;

fn connector(options: OffloadingOptions, rules: SchedulerRules) -> Offloading {
    Offloading::new(options, ConnectorRules::Vllm(rules), BLOCK_TOKENS, true)
}

fn lru(chunks: u32, rules: SchedulerRules) -> Offloading {
    connector(OffloadingOptions { chunks, ..OffloadingOptions::default() }, rules)
}

fn prompt(content: u64, blocks: u32) -> Vec<BlockHash> {
    (0..u64::from(blocks)).map(|index| content * 100 + index).collect()
}

fn known(sequence: u64, hashes: &[BlockHash]) -> Known<'_> {
    let tokens = hashes.len() as u32 * BLOCK_TOKENS;
    Known { sequence, hashes, num_tokens: tokens + 1, prompt_tokens: tokens }
}

fn lookup(offloading: &mut Offloading, sequence: u64, hashes: &[BlockHash]) -> Option<u32> {
    offloading.lookup(known(sequence, hashes), 0, false, |_| false)
}

/// Begins a request, looks it up and computes its whole prompt in one step, in blocks numbered from `first_block`.
fn compute(offloading: &mut Offloading, sequence: u64, hashes: &[BlockHash], first_block: u32) {
    offloading.begin(sequence, sequence);
    lookup(offloading, sequence, hashes);
    let blocks: Vec<BlockId> = (first_block..first_block + hashes.len() as u32).collect();
    offloading.give(sequence, true, &blocks, 0);
    offloading.flush_given();
    offloading.store(sequence, hashes, whole(hashes));
    offloading.end_step();
}

fn whole(hashes: &[BlockHash]) -> Storing {
    let tokens = hashes.len() as u32 * BLOCK_TOKENS;
    Storing { computed: tokens, known: tokens + 1, prompt: tokens }
}

/// Ends a request and makes the next step.
fn end(offloading: &mut Offloading, sequence: u64, hashes: &[BlockHash]) {
    offloading.end(known(sequence, hashes), whole(hashes));
    offloading.end_step();
}

fn end_jobs(offloading: &mut Offloading) {
    let jobs: Vec<u64> = offloading.jobs.keys().copied().collect();
    for job in jobs {
        offloading.end_job(job);
    }
    offloading.assert_consistent();
}

fn evictable(offloading: &Offloading) -> Vec<BlockHash> {
    offloading.evictable().collect()
}

#[test]
fn what_is_on_its_way_has_others_wait() {
    let mut host = lru(8, SchedulerRules::V0_33);
    let one = prompt(1, 3);
    compute(&mut host, 1, &one, 1);
    host.begin(2, 2);
    assert_eq!(lookup(&mut host, 2, &one), None, "the blocks are on their way to the host");
    assert_eq!(lookup(&mut host, 1, &one), None, "its own copies are under way");
    end_jobs(&mut host);
    assert_eq!(lookup(&mut host, 2, &one), Some(12));
    host.begin_load(known(2, &one), RequestId(2), &[7, 8, 9], 0, 12);
    host.begin(3, 3);
    assert_eq!(lookup(&mut host, 3, &one), None, "another request loads them");
    assert_eq!(lookup(&mut host, 3, &prompt(2, 3)), Some(0));
    assert_eq!(evictable(&host), [], "what is read stays");
    end_jobs(&mut host);
    assert_eq!(lookup(&mut host, 3, &one), Some(12));
}

#[test]
fn all_blocks_of_a_step_are_stored_or_none() {
    let mut host = lru(4, SchedulerRules::V0_33);
    compute(&mut host, 1, &prompt(1, 3), 1);
    compute(&mut host, 2, &prompt(2, 2), 4);
    assert_eq!(host.num_chunks(), 3, "there is one place for two blocks");
    assert!(host.has_pending_work());
    end_jobs(&mut host);
    // Request 2 decodes, and offers its blocks again.
    assert!(host.may_store(2));
    host.store(2, &prompt(2, 2), whole(&prompt(2, 2)));
    host.end_step();
    assert_eq!(host.take_evicted(), [102], "of the other prompt the last block leaves first");
    assert!(!host.may_store(2));
    assert_eq!(host.latest().stores[0].places, [3, 2], "a new place, and that of the block that has left");
}

#[test]
fn blocks_leave_in_the_order_of_uses() {
    for (rules, running) in
        [(SchedulerRules::V0_32, [100, 101, 102, 200, 201]), (SchedulerRules::V0_33, [102, 101, 100, 201, 200])]
    {
        let mut host = lru(8, rules);
        compute(&mut host, 1, &prompt(1, 3), 1);
        compute(&mut host, 2, &prompt(2, 2), 4);
        end_jobs(&mut host);
        assert_eq!(evictable(&host), running, "{rules:?}");
        end(&mut host, 1, &prompt(1, 3));
        assert_eq!(evictable(&host)[2..], [102, 101, 100], "the end of a request is a use: {rules:?}");
    }
}

#[test]
fn a_block_is_taken_again_when_its_copy_is_over() {
    let mut host = lru(8, SchedulerRules::V0_33);
    compute(&mut host, 1, &prompt(1, 2), 1);
    assert!(host.latest().flushed.is_empty());
    end(&mut host, 1, &prompt(1, 2));
    compute(&mut host, 2, &prompt(2, 2), 2);
    assert_eq!(host.latest().flushed, [0].into(), "block 2 is read by job 0");
    end_jobs(&mut host);
    compute(&mut host, 3, &prompt(3, 2), 1);
    assert!(host.latest().flushed.is_empty(), "the copy is over");
    host.preempt(3);
    host.end_step();
    assert_eq!(host.latest().flushed, [2].into(), "copies of a preempted request are finished");
}

#[test]
fn a_preempted_request_offers_its_blocks_again_since_0_33() {
    for (rules, count) in [(SchedulerRules::V0_32, 0), (SchedulerRules::V0_33, 1)] {
        let mut host = connector(OffloadingOptions { chunks: 8, store_threshold: 2, ..<_>::default() }, rules);
        compute(&mut host, 1, &prompt(1, 2), 1);
        assert!(host.latest().stores.is_empty(), "offered once");
        lookup(&mut host, 1, &prompt(1, 2));
        host.give(1, true, &[5, 6], 0);
        host.store(1, &prompt(1, 2), whole(&prompt(1, 2)));
        host.end_step();
        assert_eq!(host.latest().stores.len(), count, "{rules:?}");
    }
}

#[test]
fn blocks_used_again_outlive_those_used_once() {
    let options = OffloadingOptions { chunks: 4, eviction_policy: EvictionPolicy::Arc, ..<_>::default() };
    let mut host = connector(options, SchedulerRules::V0_33);
    let (one, two) = (prompt(1, 2), prompt(2, 2));
    compute(&mut host, 1, &one, 1);
    compute(&mut host, 2, &two, 3);
    end_jobs(&mut host);
    end(&mut host, 1, &one);
    end(&mut host, 2, &two);
    // Request 3 finds the first prompt.
    compute(&mut host, 3, &one, 5);
    end(&mut host, 3, &one);
    compute(&mut host, 4, &prompt(4, 2), 7);
    assert_eq!(host.take_evicted(), [201, 200]);
    end_jobs(&mut host);
    // The second prompt was evicted recently, so the target number of chunks used once rises to
    // two.
    compute(&mut host, 5, &two, 9);
    assert_eq!(host.take_evicted(), [400, 101], "one of each kind");
    host.assert_consistent();
}

#[test]
fn a_chunk_of_several_blocks_is_found_from_within() {
    let mut host =
        connector(OffloadingOptions { chunks: 8, blocks_per_chunk: 2, ..<_>::default() }, SchedulerRules::V0_33);
    let one = prompt(1, 5);
    compute(&mut host, 1, &one, 1);
    assert_eq!(host.latest().stores[0].places, [0, 1], "the last block fills no chunk");
    end_jobs(&mut host);
    host.begin(2, 2);
    // The device has 4 tokens; the host has 12 more.
    assert_eq!(host.lookup(known(2, &one), 4, false, |_| false), Some(12));
    let begun = host.begin_load(known(2, &one), RequestId(2), &[1, 6, 7, 8], 4, 12);
    assert_eq!(begun.host_chunks, 2);
    assert_eq!(host.latest().loads, [], "it belongs to the coming step");
}

#[derive(Clone, Debug)]
enum Act {
    Compute { content: u64, blocks: u32 },
    Load { content: u64, blocks: u32 },
    Finish { which: usize },
    EndJob { which: usize },
}

fn arb_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..6u64, 1..6u32).prop_map(|(content, blocks)| Act::Compute { content, blocks }),
        3 => (1..6u64, 1..6u32).prop_map(|(content, blocks)| Act::Load { content, blocks }),
        2 => (0..100usize).prop_map(|which| Act::Finish { which }),
        3 => (0..100usize).prop_map(|which| Act::EndJob { which }),
    ]
}

/// The host of Dynamo's mocker, for one engine.
fn mocked(chunks: u32) -> Offloading {
    let options = OffloadingOptions { chunks, ..OffloadingOptions::default() };
    Offloading::new(options, ConnectorRules::Dynamo { is_shared: false }, BLOCK_TOKENS, true)
}

#[test]
fn dynamos_mocker_uses_blocks_when_they_are_looked_up_and_when_transfers_end() {
    let mut host = mocked(8);
    let (one, other) = (prompt(1, 2), prompt(2, 2));
    compute(&mut host, 1, &one, 0);
    compute(&mut host, 2, &other, 4);
    end_jobs(&mut host);
    assert_eq!(evictable(&host), [101, 100, 201, 200], "in the order of the copies, later tokens first");
    host.begin(3, 3);
    assert_eq!(lookup(&mut host, 3, &one), Some(8));
    assert_eq!(evictable(&host), [201, 200, 101, 100]);
    // A load pins the chunks, and the end of the load counts as a use.
    host.begin_load(known(3, &one), RequestId(3), &[8, 9], 0, 8);
    assert_eq!(evictable(&host), [201, 200]);
    end_jobs(&mut host);
    assert_eq!(evictable(&host), [201, 200, 101, 100]);
}

#[test]
fn dynamos_mocker_offers_no_block_that_is_still_copied_for_another_request() {
    let mut host = mocked(8);
    let (one, other) = (prompt(1, 2), prompt(2, 2));
    compute(&mut host, 1, &one, 4);
    end(&mut host, 1, &one);
    // Its blocks are reused, so the step waits and stores nothing yet.
    compute(&mut host, 2, &other, 4);
    assert_eq!((host.latest().flushed.len(), host.latest().stores.len()), (1, 0));
    assert!(host.may_store(2));
    end_jobs(&mut host);
    host.store(2, &other, whole(&other));
    host.end_step();
    assert_eq!(host.latest().stores.len(), 1);
    // A request does not write to the blocks that it finds.
    end(&mut host, 2, &other);
    host.begin(3, 3);
    host.give(3, true, &[4, 5], 2);
    host.flush_given();
    host.end_step();
    assert!(host.latest().flushed.is_empty());
}

proptest! {
    /// The host never exceeds its capacity and holds no chunk twice. Chunks that a job reads or
    /// writes are not evicted. At the end, no state of any request is left.
    #[test]
    fn the_host_holds_what_it_can(
        chunks in 1..12u32,
        is_arc in any::<bool>(),
        store_threshold in 0..3u32,
        max_tracker_size in 1..20u32,
        is_newer in any::<bool>(),
        acts in proptest::collection::vec(arb_act(), 1..60),
    ) {
        let eviction_policy = if is_arc { EvictionPolicy::Arc } else { EvictionPolicy::Lru };
        let options = OffloadingOptions { chunks, eviction_policy, store_threshold, max_tracker_size, ..<_>::default() };
        let rules = if is_newer { SchedulerRules::V0_33 } else { SchedulerRules::V0_32 };
        let mut host = connector(options, rules);
        let mut live: Vec<(u64, Vec<BlockHash>)> = Vec::new();
        for (sequence, act) in (0..).zip(acts) {
            match act {
                Act::Compute { content, blocks } => {
                    let hashes = prompt(content, blocks);
                    compute(&mut host, sequence, &hashes, sequence as u32 * 10);
                    live.push((sequence, hashes));
                }
                Act::Load { content, blocks } => {
                    let hashes = prompt(content, blocks);
                    host.begin(sequence, sequence);
                    let found = lookup(&mut host, sequence, &hashes);
                    prop_assert!(found.is_none_or(|tokens| tokens <= blocks * BLOCK_TOKENS));
                    if let Some(tokens) = found.filter(|&tokens| tokens > 0) {
                        let table: Vec<BlockId> = (0..blocks).map(|block| sequence as u32 * 10 + block).collect();
                        let begun = host.begin_load(known(sequence, &hashes), RequestId(0), &table, 0, tokens);
                        prop_assert_eq!(begun.host_chunks * BLOCK_TOKENS, tokens);
                        host.end_step();
                    }
                    live.push((sequence, hashes));
                }
                Act::Finish { which } if !live.is_empty() => {
                    let (sequence, hashes) = live.remove(which % live.len());
                    end(&mut host, sequence, &hashes);
                }
                Act::EndJob { which } if !host.jobs.is_empty() => {
                    let job = *host.jobs.keys().nth(which % host.jobs.len()).expect("one of them");
                    host.end_job(job);
                }
                Act::Finish { .. } | Act::EndJob { .. } => {}
            }
            host.assert_consistent();
            for job in host.jobs.values() {
                prop_assert!(job.keys.iter().all(|&key| host.host.find(key) != Found::Missing), "a job's chunk has left");
            }
        }
        for (sequence, hashes) in live {
            end(&mut host, sequence, &hashes);
        }
        end_jobs(&mut host);
        prop_assert!(host.requests.is_empty() && host.fences.is_empty());
        prop_assert_eq!(evictable(&host).len() as u32, host.num_chunks(), "nothing is read or written any more");
    }
}
