use proptest::prelude::*;

use super::*;

fn geometry(kv_heads: u32, ranks: u32) -> Geometry {
    Geometry::new(GeometryInput {
        layers: 2,
        kv_heads,
        slice_bytes: 64,
        ranks,
        blocks: 10,
        block_tokens: 16,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    })
    .expect("the sizes fit")
}

#[test]
fn sizes_follow_from_the_model() {
    let geometry = geometry(8, 2);
    assert_eq!((geometry.heads_per_rank(), geometry.page_bytes(), geometry.pages_per_block()), (4, 256, 8));
    assert_eq!((geometry.block_bytes(), geometry.total_bytes()), (2048, 20_480));
    assert_eq!(geometry.page_offset(1, 3, 9), 20_480 - 256);
    let together = Geometry::new(GeometryInput { layers: 3, regions: Regions::Together, ..*geometry.input() });
    let together = together.expect("the sizes fit");
    assert_eq!((together.regions(), together.head_bytes(), together.page_bytes()), (3, 128, 512));
    assert_eq!((together.block_bytes(), together.page_offset(1, 2, 9)), (3072, 30_720 - 512));
    // Each rank has the whole vector.
    let latent = GeometryInput { layers: 3, kv_heads: 1, regions: Regions::Latent, ..*geometry.input() };
    let latent = Geometry::new(latent).expect("the sizes fit");
    assert_eq!((latent.regions(), latent.page_bytes(), latent.block_bytes()), (3, 64, 2 * 3 * 64));
}

#[test]
fn invalid_sizes_are_named() {
    let input = *geometry(8, 2).input();
    let error = |input| Geometry::new(input).expect_err("it is invalid").to_string();
    assert!(error(GeometryInput { layers: 0, ..input }).contains("layers is 0"));
    assert!(error(GeometryInput { ranks: 3, ..input }).contains("8 KV heads cannot be divided among 3"));
    assert!(error(GeometryInput { slice_bytes: u32::MAX, ..input }).contains("smaller than 4 GiB"));
    let wanted = "expected a multiple of 32 (2 layers x K and V x 8 KV heads)";
    assert!(input.with_block_bytes(100).expect_err("it is not a multiple").to_string().contains(wanted));
    assert_eq!(input.with_block_bytes(3200).map(|input| input.slice_bytes), Ok(100));
    let latent = GeometryInput { kv_heads: 1, regions: Regions::Latent, ..input };
    let wanted = "expected a multiple of 2 (2 layers x a latent vector x 1 KV heads)";
    assert!(latent.with_block_bytes(101).expect_err("it is not a multiple").to_string().contains(wanted));
}

#[test]
fn what_differs_is_named() {
    let here = geometry(8, 2);
    let other = Geometry::new(GeometryInput { block_tokens: 32, ..*here.input() }).expect("the sizes fit");
    let mismatch = here.pieces(&other).expect_err("blocks differ").to_string();
    assert_eq!(mismatch, "tokens of a block differ: 16 here, 32 at the peer");
    assert_ne!(here.layout_hash(), other.layout_hash());
    assert_eq!(here.layout_hash(), geometry(8, 4).layout_hash());
    let together = Geometry::new(GeometryInput { regions: Regions::Together, ..*here.input() });
    let mismatch = here.pieces(&together.expect("the sizes fit")).expect_err("regions differ").to_string();
    assert_eq!(mismatch, "K and V of a layer differ: Apart here, Together at the peer");
    let [large, small] = [4096, 2048].map(|bytes| here.input().with_block_bytes(bytes).and_then(Geometry::new));
    let mismatch = large.expect("the sizes fit").pieces(&small.expect("the sizes fit")).expect_err("blocks differ");
    let wanted = "bytes of a block (see --kv-block-bytes) differ: 4096 here, 2048 at the peer";
    assert_eq!(mismatch.to_string(), wanted);
    let flat = |ranks| {
        Geometry::new(GeometryInput { order: HeadOrder::TokensFirst, ranks, ..*here.input() }).expect("they fit")
    };
    assert!(flat(2).pieces(&flat(4)).is_err_and(|mismatch| mismatch.field.starts_with("tensor-parallel")));
    assert_eq!(flat(2).pieces(&flat(2)).map(|pieces| pieces.len()), Ok(2));
}

proptest! {
    /// Every byte of a local page comes from exactly one remote page, from the same head.
    #[test]
    fn pieces_cover_each_page_once(local in 0u32..6, remote in 0u32..6, heads in 0u32..5) {
        let (here, there) = (geometry(1 << heads, 1 << local), geometry(1 << heads, 1 << remote));
        let pieces = here.pieces(&there).expect("only ranks differ");
        for rank in 0..here.ranks() {
            let mut offset = 0;
            for piece in pieces.iter().filter(|piece| piece.local_rank == rank) {
                prop_assert_eq!(piece.local_offset, offset);
                prop_assert!(piece.remote_rank < there.ranks());
                prop_assert!(piece.remote_offset + piece.bytes <= there.page_bytes());
                let head = here.first_head(rank) + offset / 64;
                prop_assert_eq!(there.first_head(piece.remote_rank) + piece.remote_offset / 64, head);
                offset += piece.bytes;
            }
            prop_assert_eq!(offset, here.page_bytes());
        }
    }
}
