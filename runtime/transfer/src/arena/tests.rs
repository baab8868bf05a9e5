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

#[test]
fn addresses_are_those_of_the_pages() {
    let arena = Arena::new(geometry(4), None).expect("it is small");
    let base = arena.page_address(0, 0, 0);
    assert_eq!(arena.page_address(0, 0, 3) - base, 3 * 48);
    assert_eq!(arena.page_address(1, 3, 3) - base, 384 * 4 - 48);
}
