use proptest::prelude::*;

use super::*;

/// A block of 16 tokens takes 1 us to the host and 2 us to the disk.
fn config() -> KvTiersConfig {
    KvTiersConfig {
        host_blocks: 4,
        disk_blocks: 3,
        kv_bytes_per_token: 1_000,
        offload_batch_size: 2,
        device_to_host_bytes_per_s: Some(16_000_000_000),
        host_to_device_bytes_per_s: Some(32_000_000_000),
        host_to_disk_bytes_per_s: Some(8_000_000_000),
        disk_to_host_bytes_per_s: Some(4_000_000_000),
        host_latency_ns: 0,
        disk_latency_ns: 100,
        ..KvTiersConfig::default()
    }
}

fn tiers() -> KvTiers {
    let mut tiers = KvTiers::new(config(), 16, SchedulerRules::default());
    tiers.record_changes(true);
    tiers
}

fn run(host_blocks: u32, disk_blocks: u32) -> TierRun {
    TierRun { host_blocks, disk_blocks }
}

fn changes(tiers: &mut KvTiers) -> Vec<(u64, KvTier, BlockHash, bool)> {
    tiers.take_changes().map(|change| (change.at_ns, change.tier, change.hash, change.stored)).collect()
}

#[test]
fn batches_arrive_one_after_another_each_as_a_whole() {
    let mut tiers = tiers();
    tiers.advance(10);
    tiers.offload(&[1, 2, 3], 0);
    assert_eq!(tiers.find_run(&[1, 2, 3]), run(0, 0), "nothing has arrived");
    tiers.advance(2_009);
    assert_eq!(tiers.find_run(&[1]), run(0, 0));
    tiers.advance(2_010);
    assert_eq!(tiers.find_run(&[1, 2, 3]), run(2, 0));
    tiers.advance(9_000);
    assert_eq!(tiers.find_run(&[1, 2, 3, 4]), run(3, 0));
    let host = |at_ns, hash| (at_ns, KvTier::Host, hash, true);
    assert_eq!(changes(&mut tiers), [host(2_010, 1), host(2_010, 2), host(3_010, 3)]);
    assert_eq!(tiers.stats().device_to_host_bytes, 48_000);
    // The host already holds the blocks.
    tiers.offload(&[1, 2, 3], 0);
    assert_eq!(tiers.stats().device_to_host_bytes, 48_000);
}

#[test]
fn the_first_byte_of_a_transfer_waits_beside_those_under_way() {
    let config = KvTiersConfig { host_latency_ns: 500, ..config() };
    let mut tiers = KvTiers::new(config, 16, SchedulerRules::default());
    tiers.record_changes(true);
    tiers.advance(10);
    // Two batches at once: the second batch waits while the first is sent.
    tiers.offload(&[1, 2, 3], 0);
    tiers.advance(20_000);
    let host = |at_ns, hash| (at_ns, KvTier::Host, hash, true);
    assert_eq!(changes(&mut tiers), [host(2_510, 1), host(2_510, 2), host(3_510, 3)]);
}

#[test]
fn what_leaves_the_host_goes_to_the_disk_and_what_leaves_that_is_gone() {
    let mut tiers = tiers();
    tiers.offload(&[1, 2, 3, 4], 0);
    tiers.advance(10_000);
    // The last block of a sequence is evicted first.
    assert_eq!(tiers.evictable(KvTier::Host).collect::<Vec<_>>(), [4, 3, 2, 1]);
    tiers.touch(&[4]);
    tiers.offload(&[5, 6], 0);
    assert_eq!(tiers.find_run(&[3]), run(0, 0), "it is neither here nor there while it is written");
    // A block takes 2 us to the disk.
    tiers.advance(12_000);
    assert_eq!((tiers.find_run(&[3]), tiers.find_run(&[2])), (run(0, 1), run(0, 0)));
    tiers.advance(14_000);
    assert_eq!(
        (tiers.find_run(&[1]), tiers.find_run(&[2]), tiers.find_run(&[5, 6])),
        (run(1, 0), run(0, 1), run(2, 0))
    );
    changes(&mut tiers);
    tiers.offload(&[7, 8], 0);
    tiers.advance(20_000);
    let disk: Vec<_> = tiers.evictable(KvTier::Disk).collect();
    assert_eq!(disk, [2, 1, 4], "3 was the first there, and is gone");
    let gone = changes(&mut tiers);
    assert!(gone.contains(&(14_000, KvTier::Disk, 3, false)), "{gone:?}");
    assert_eq!(tiers.stats().host_to_disk_bytes, 4 * 16_000);
    tiers.assert_consistent();
}

#[test]
fn a_load_reads_the_disk_first_and_shares_its_way_with_others() {
    let mut tiers = tiers();
    tiers.offload(&[1, 2, 3, 4], 0);
    tiers.advance(10_000);
    tiers.offload(&[5, 6], 0);
    tiers.advance(20_000);
    // Blocks 4 and 3 are on the disk now.
    assert_eq!(tiers.find_run(&[1, 2, 3, 4]), run(2, 2));
    let one = RequestId(1);
    assert_eq!(tiers.start_load(one, &[1, 2, 3, 4], 64), run(2, 2));
    // Two blocks from the host take 1 us; the disk blocks take 8 us plus the latency.
    assert_eq!(tiers.next_load_ns(), Some(21_000));
    tiers.advance(21_000);
    assert_eq!(tiers.next_load_ns(), Some(28_100));
    // Another load is being transferred to the device when the disk blocks arrive.
    let two = RequestId(2);
    tiers.advance(28_000);
    tiers.start_load(two, &[1, 2], 32);
    tiers.advance(29_999);
    assert_eq!(*tiers.complete_mut(), [(two, 32)]);
    assert_eq!(tiers.next_load_ns(), Some(30_000), "29,000 when the way is free, and a microsecond for two blocks");
    tiers.advance(30_000);
    assert_eq!(*tiers.complete_mut(), [(two, 32), (one, 64)]);
    assert_eq!(tiers.find_run(&[1, 2, 3, 4]), run(4, 0), "what was read from the disk stays in the host");
    let stats = tiers.stats();
    assert_eq!((stats.loads, stats.host_hit_blocks, stats.disk_hit_blocks), (2, 4, 2));
    assert_eq!((stats.disk_to_host_bytes, stats.host_to_device_bytes), (32_000, 96_000));
    tiers.assert_consistent();
}

#[test]
fn what_is_read_keeps_its_place_and_a_forgotten_load_gives_it_back() {
    let mut tiers = tiers();
    tiers.offload(&[1, 2, 3, 4], 0);
    tiers.advance(10_000);
    tiers.start_load(RequestId(1), &[1, 2, 3, 4], 64);
    tiers.offload(&[5], 0);
    assert_eq!(tiers.stats().device_to_host_bytes, 64_000, "there is no place for it");
    tiers.forget_load(RequestId(1));
    assert_eq!(tiers.next_load_ns(), Some(12_000), "what is under way goes on");
    tiers.advance(12_000);
    assert_eq!((tiers.complete_mut().len(), tiers.next_load_ns()), (0, None));
    tiers.offload(&[5], 0);
    tiers.advance(20_000);
    assert_eq!(tiers.find_run(&[5]), run(1, 0));
    tiers.assert_consistent();
}

#[derive(Clone, Debug)]
enum Act {
    Offload { first_hash: u64, blocks: u64 },
    Load { first_hash: u64, blocks: u64 },
    Forget,
    Wait { ns: u64 },
}

fn arb_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..30u64, 1..8u64).prop_map(|(first_hash, blocks)| Act::Offload { first_hash, blocks }),
        3 => (1..30u64, 1..8u64).prop_map(|(first_hash, blocks)| Act::Load { first_hash, blocks }),
        1 => Just(Act::Forget),
        3 => (0..8_000u64).prop_map(|ns| Act::Wait { ns }),
    ]
}

proptest! {
    /// No tier exceeds its capacity or holds a block twice. Every load ends. Reports equal the
    /// contents. The frequency of calls does not matter.
    #[test]
    fn tiers_hold_what_they_can_and_every_load_ends(
        host_blocks in 1..12u32,
        disk_blocks in 0..12u32,
        offload_batch_size in 1..5u32,
        is_instant in any::<[bool; 4]>(),
        acts in proptest::collection::vec(arb_act(), 1..60),
    ) {
        let speed = |way: usize| (!is_instant[way]).then_some(4_000_000_000 << way);
        let config = KvTiersConfig {
            host_blocks,
            disk_blocks,
            offload_batch_size,
            device_to_host_bytes_per_s: speed(0),
            host_to_device_bytes_per_s: speed(1),
            host_to_disk_bytes_per_s: speed(2),
            disk_to_host_bytes_per_s: speed(3),
            ..config()
        };
        let mut tiers = KvTiers::new(config, 16, SchedulerRules::default());
        let mut seldom = KvTiers::new(config, 16, SchedulerRules::default());
        tiers.record_changes(true);
        let mut there = [std::collections::BTreeSet::new(), std::collections::BTreeSet::new()];
        let (mut now_ns, mut next_request) = (0, 0);
        let mut loading = Vec::new();
        for act in acts {
            match act {
                Act::Offload { first_hash, blocks } => {
                    let hashes: Vec<u64> = (first_hash..first_hash + blocks).collect();
                    for tiers in [&mut tiers, &mut seldom] {
                        tiers.advance(now_ns);
                        tiers.offload(&hashes, 0);
                    }
                }
                Act::Load { first_hash, blocks } => {
                    let hashes: Vec<u64> = (first_hash..first_hash + blocks).collect();
                    let request = RequestId(next_request);
                    seldom.advance(now_ns);
                    let run = tiers.find_run(&hashes);
                    prop_assert_eq!(run, seldom.find_run(&hashes));
                    if run.blocks() > 0 {
                        for tiers in [&mut tiers, &mut seldom] {
                            tiers.touch(&hashes);
                            prop_assert_eq!(tiers.start_load(request, &hashes[..run.blocks() as usize], 16), run);
                        }
                        loading.push(request);
                        next_request += 1;
                    }
                }
                Act::Forget => {
                    if let Some(request) = loading.pop() {
                        for tiers in [&mut tiers, &mut seldom] {
                            tiers.advance(now_ns);
                            tiers.forget_load(request);
                        }
                    }
                }
                Act::Wait { ns } => {
                    for _ in 0..4 {
                        now_ns += ns / 4;
                        tiers.advance(now_ns);
                    }
                }
            }
            tiers.advance(now_ns);
            tiers.assert_consistent();
            for change in tiers.take_changes() {
                prop_assert!(change.at_ns <= now_ns);
                let tier = &mut there[change.tier as usize];
                prop_assert_eq!(if change.stored { tier.insert(change.hash) } else { tier.remove(&change.hash) }, true);
            }
            for hash in 0..40 {
                let changes = run(u32::from(there[0].contains(&hash)), 0);
                let changes = if changes.host_blocks == 0 { run(0, u32::from(there[1].contains(&hash))) } else { changes };
                prop_assert_eq!(tiers.find_run(&[hash]), changes, "block {}", hash);
            }
            for (request, _) in tiers.complete_mut().drain(..) {
                loading.retain(|&other| other != request);
            }
        }
        let end_ns = now_ns + 1_000_000_000;
        tiers.advance(end_ns);
        seldom.advance(end_ns);
        for (request, _) in tiers.complete_mut().drain(..) {
            loading.retain(|&other| other != request);
        }
        prop_assert_eq!(loading, []);
        prop_assert_eq!(tiers.next_load_ns(), None);
        prop_assert_eq!(tiers.stats(), seldom.stats());
        for tier in [KvTier::Host, KvTier::Disk] {
            prop_assert_eq!(tiers.evictable(tier).collect::<Vec<_>>(), seldom.evictable(tier).collect::<Vec<_>>());
        }
        prop_assert_eq!(tiers.evictable(KvTier::Host).count() as u32, tiers.num_blocks().0, "all pins are taken back");
    }
}

/// Two engines that share a disk of 800 MB/s in each direction, and optionally the host.
fn shared_config(host_blocks: u32, disk_blocks: u32, is_host_shared: bool) -> KvTiersConfig {
    let shared = SharedTier { write_bytes_per_s: Some(20_000_000_000), read_bytes_per_s: Some(4_000_000_000) };
    KvTiersConfig {
        host_blocks,
        disk_blocks,
        host_latency_ns: 300,
        shared_host: is_host_shared.then_some(shared),
        shared_disk: Some(shared),
        ..config()
    }
}

#[test]
fn engines_see_what_is_kept_in_a_shared_tier_and_load_it_side_by_side() {
    let mut tiers = KvTiers::new(shared_config(4, 3, true), 16, SchedulerRules::default());
    let other = tiers.add_client();
    tiers.record_changes(true);
    tiers.offload(&[1, 2], 0);
    tiers.advance(10_000);
    tiers.enter(other);
    tiers.record_changes(true);
    assert_eq!(tiers.take_changes().map(|change| change.hash).collect::<Vec<_>>(), [1, 2], "there already");
    assert_eq!(tiers.find_run(&[1, 2, 3]), run(2, 0));
    tiers.start_load(RequestId(7), &[1, 2], 32);
    tiers.enter(0);
    tiers.start_load(RequestId(7), &[1, 2], 32);
    // The wait, and then 32 kB each at half of 4 GB/s.
    assert_eq!(tiers.next_load_ns(), Some(10_300));
    tiers.advance(10_300);
    assert_eq!(tiers.next_load_ns(), Some(26_300));
    tiers.enter(other);
    tiers.leave();
    tiers.advance(26_300);
    assert_eq!((tiers.complete_mut().len(), tiers.next_load_ns()), (0, None), "it is gone, and so is its request");
    tiers.enter(0);
    assert_eq!(*tiers.complete_mut(), [(RequestId(7), 32)]);
    assert_eq!((tiers.stats().device_to_host_bytes, tiers.stats().host_to_device_bytes), (32_000, 32_000));
    tiers.assert_consistent();
}

proptest! {
    /// With shared tiers, every load ends exactly once, for the engine that requested it.
    #[test]
    fn loads_from_shared_tiers_end_with_their_engines(
        host_blocks in 1..12u32,
        disk_blocks in 1..12u32,
        is_host_shared in any::<bool>(),
        acts in proptest::collection::vec((0..3u32, arb_act()), 1..60),
    ) {
        let config = shared_config(host_blocks, disk_blocks, is_host_shared);
        let new = || KvTiers::new(config, 16, SchedulerRules::default());
        let (mut tiers, mut seldom) = (new(), new());
        for tiers in [&mut tiers, &mut seldom] {
            (0..2).for_each(|_| _ = tiers.add_client());
        }
        let mut loading: [Vec<RequestId>; 3] = Default::default();
        let mut ended: [Vec<RequestId>; 3] = Default::default();
        let (mut now_ns, mut next_request) = (0, 0);
        for (client, act) in acts {
            tiers.enter(client);
            seldom.enter(client);
            match act {
                Act::Offload { first_hash, blocks } => {
                    let hashes: Vec<u64> = (first_hash..first_hash + blocks).collect();
                    for tiers in [&mut tiers, &mut seldom] {
                        tiers.advance(now_ns);
                        tiers.offload(&hashes, 0);
                    }
                }
                Act::Load { first_hash, blocks } => {
                    let hashes: Vec<u64> = (first_hash..first_hash + blocks).collect();
                    seldom.advance(now_ns);
                    let run = tiers.find_run(&hashes);
                    prop_assert_eq!(run, seldom.find_run(&hashes));
                    if run.blocks() > 0 {
                        for tiers in [&mut tiers, &mut seldom] {
                            tiers.start_load(RequestId(next_request), &hashes[..run.blocks() as usize], 16);
                        }
                        prop_assert!(tiers.next_load_ns().is_some());
                        loading[client as usize].push(RequestId(next_request));
                        next_request += 1;
                    }
                }
                Act::Forget => {
                    if let Some(request) = loading[client as usize].pop() {
                        for tiers in [&mut tiers, &mut seldom] {
                            tiers.advance(now_ns);
                            tiers.forget_load(request);
                        }
                        ended[client as usize].retain(|&other| other != request);
                    }
                }
                Act::Wait { ns } => {
                    for _ in 0..4 {
                        now_ns += ns / 4;
                        tiers.advance(now_ns);
                    }
                }
            }
            tiers.advance(now_ns);
            tiers.assert_consistent();
            ended[client as usize].extend(tiers.complete_mut().drain(..).map(|(request, _)| request));
        }
        for tiers in [&mut tiers, &mut seldom] {
            tiers.advance(now_ns + 1_000_000_000);
        }
        for client in 0..3 {
            tiers.enter(client);
            seldom.enter(client);
            let ended = &mut ended[client as usize];
            ended.extend(tiers.complete_mut().drain(..).map(|(request, _)| request));
            ended.sort_unstable();
            loading[client as usize].retain(|request| !ended.contains(request));
            prop_assert!(loading[client as usize].is_empty());
            prop_assert!(ended.windows(2).all(|pair| pair[0] != pair[1]));
            prop_assert_eq!(tiers.next_load_ns(), None);
            prop_assert_eq!(tiers.stats(), seldom.stats());
            prop_assert_eq!(tiers.evictable(KvTier::Host).count() as u32, tiers.num_blocks().0, "all pins are taken back");
            prop_assert_eq!(tiers.evictable(KvTier::Disk).collect::<Vec<_>>(), seldom.evictable(KvTier::Disk).collect::<Vec<_>>());
        }
    }
}
