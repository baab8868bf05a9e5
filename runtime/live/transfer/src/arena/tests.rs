use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::geometry::{GeometryInput, HeadOrder, Regions};

fn geometry(blocks: u32) -> Geometry {
    Geometry::new(GeometryInput {
        layers: 2,
        kv_heads: 4,
        slice_bytes: 24,
        ranks: 2,
        blocks,
        block_tokens: 16,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    })
    .expect("the sizes fit")
}

fn page(rank: u32, region: u32, block: u32) -> Span {
    Span { rank, region, block, offset: 0, bytes: 48 }
}

#[test]
fn a_filled_block_has_its_pattern_and_its_neighbours_do_not() {
    let arena = Arena::new(geometry(4), None).expect("it is small");
    arena.fill(2, 99);
    for (rank, region) in [(0, 0), (0, 3), (1, 0), (1, 3)] {
        assert_eq!(arena.first_wrong(&page(rank, region, 2), 99), None);
        assert_eq!(arena.first_wrong(&page(rank, region, 1), 99), Some(0));
        assert_eq!(arena.first_wrong(&page(rank, region, 2), 98), Some(0));
    }
    let second_head = Span { offset: 24, bytes: 24, ..page(1, 1, 2) };
    assert_eq!(arena.first_wrong(&second_head, 99), None);
    assert_eq!((arena.content(2), arena.content(1)), (Some(99), None));
}

#[test]
fn only_the_owner_writes() {
    let arena = Arena::new(geometry(4), None).expect("it is small");
    arena.claim(1, 7);
    arena.claim(2, 8);
    let write = |owner, spans: &[Span]| arena.with_spans_mut(owner, spans, |slices| slices.len());
    assert_eq!(write(7, &[page(0, 0, 1), page(1, 3, 1)]), Some(2));
    assert_eq!(write(7, &[page(0, 0, 1), page(0, 0, 2)]), None, "block 2 is another's");
    arena.corrupt(&page(0, 0, 1), 7);
    arena.take_back(1, 8, Some(5));
    assert_eq!(arena.content(1), None, "8 never owned it");
    arena.take_back(1, 7, Some(5));
    assert_eq!((arena.content(1), write(7, &[page(0, 0, 1)])), (Some(5), None));
    arena.claim(1, 9);
    assert_eq!(arena.materialize(1), None, "it is for no reader");
    arena.fill(1, 4);
    assert_eq!(write(9, &[page(0, 0, 1)]), None, "a filled block has no owner");
}

/// The engine's thread makes these calls during a copy; if one of them waited for the copy, this test would hang.
#[test]
fn states_change_while_pages_are_copied() {
    let arena = Arena::new(geometry(4), None).expect("it is small");
    arena.claim(1, 7);
    arena.claim(2, 7);
    let copied = arena.with_spans_mut(7, &[page(0, 0, 1), page(0, 0, 2)], |slices| {
        slices.iter_mut().for_each(|slice| slice.fill(9));
        arena.take_back(1, 7, None);
        assert!(!arena.want(1, 5));
        arena.claim(1, 8);
        assert!(arena.is_owned(1, 8) && !arena.is_owned(1, 7));
        assert!(!arena.want(1, 6));
        assert_eq!(arena.content(1), None);
        arena.take_back(2, 7, Some(5));
    });
    assert_eq!(copied, Some(()));
    // Whatever was recorded during the copy, the pages have the copied bytes.
    assert_eq!(arena.content(2), None);
    assert_eq!((arena.materialize(1), arena.materialize(2)), (Some(6), Some(5)));
    for (block, content) in [(1, 6), (2, 5)] {
        assert_eq!(arena.first_wrong(&page(0, 0, block), content), None);
    }
    let sent = arena.with_spans(
        &[page(0, 0, 1)],
        |_, content| content == Some(6),
        |_| {
            assert!(arena.want(1, 6), "it is there");
            assert!(!arena.want(1, 4));
            arena.claim(1, 9);
        },
    );
    assert_eq!((sent, arena.content(1)), (Some(()), None));
}

/// Ends the threads, even if an assertion fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// If a block gets another pattern while one is written, the written one does not count as the new one.
#[test]
fn the_last_pattern_that_is_wanted_is_the_one_that_is_there() {
    let arena = Arena::new(geometry(2), None).expect("it is small");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    arena.materialize(1);
                }
            });
        }
        for content in 1..2000 {
            arena.want(1, content);
            if content % 3 == 0 {
                arena.claim(1, content);
                arena.settle(1);
                assert_eq!(arena.materialize(1), None, "it is for no reader");
                assert!(!arena.want(1, content + 1));
            }
            let wanted = if content % 3 == 0 { content + 1 } else { content };
            assert_eq!(arena.materialize(1), Some(wanted));
            for (rank, region) in [(0, 0), (1, 3)] {
                assert_eq!(arena.first_wrong(&page(rank, region, 1), wanted), None);
            }
        }
    });
}

#[test]
#[should_panic(expected = "overlap")]
fn overlapping_spans_are_a_bug() {
    let arena = Arena::new(geometry(4), None).expect("it is small");
    arena.claim(1, 7);
    arena.with_spans_mut(7, &[page(0, 0, 1), Span { offset: 24, bytes: 24, ..page(0, 0, 1) }], |_| ());
}

#[test]
fn an_arena_larger_than_memory_is_refused() {
    let error = |blocks, limit| match Arena::new(geometry(blocks), limit) {
        Ok(_) => panic!("it is too large"),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        error(1000, Some(100_000)),
        "the KV arena needs 384000 bytes (1000 blocks of 384 bytes), but this process may use 100000"
    );
}

/// The address space covers all blocks, the memory only those in use.
#[test]
fn an_arena_takes_memory_for_blocks_in_use_only() {
    let arena = Arena::backed_as_used(geometry(1000), Some(3 * 384 + 100)).expect("address space costs nothing");
    assert!(arena.back(7) && arena.back(999) && arena.back(7));
    arena.want(8, 5);
    assert_eq!(arena.materialize(8), Some(5));
    // There is no room for a fourth block, even after several requests.
    arena.want(9, 5);
    assert_eq!((arena.materialize(9), arena.back(9), arena.back(9)), (None, false, false));
    assert!(arena.back(999), "what has memory keeps it");
    let error = arena.no_room().to_string();
    assert!(error.contains("the KV of 3 blocks of 384 bytes takes all memory"), "{error}");
}

#[test]
fn addresses_are_those_of_the_pages() {
    let arena = Arena::new(geometry(4), None).expect("it is small");
    let base = arena.page_address(0, 0, 0);
    assert_eq!(arena.page_address(0, 0, 3) - base, 3 * 48);
    assert_eq!(arena.page_address(1, 3, 3) - base, 384 * 4 - 48);
}
