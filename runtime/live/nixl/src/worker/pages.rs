//! Pages of blocks as NIXL wants them, and their comparison with the pattern.

use vcr_transfer::{BlockPair, ErrorKind, Geometry, Held, PlaneContext, Span, TransferError};

use crate::agent::Extent;
use crate::links::Link;

/// The pages of some blocks, here and at a peer.
pub(super) fn extents(context: &PlaneContext, link: &Link, blocks: &[BlockPair]) -> Vec<Extent> {
    let (arena, layout) = (&context.arena, &link.layout);
    let regions = arena.geometry().regions();
    let mut extents = Vec::with_capacity(blocks.len() * regions as usize * layout.pieces().len());
    for piece in layout.pieces() {
        for region in 0..regions {
            for pair in blocks {
                let local = arena.page_address(piece.local_rank, region, pair.local) + piece.local_offset as usize;
                extents.push((local, layout.address(piece, region, pair.remote), piece.bytes as usize));
            }
        }
    }
    extents
}

fn whole_pages(geometry: &Geometry, block: u32) -> impl Iterator<Item = Span> {
    let (bytes, num_regions) = (geometry.page_bytes(), geometry.regions());
    let regions = (0..geometry.ranks()).flat_map(move |rank| (0..num_regions).map(move |region| (rank, region)));
    regions.map(move |(rank, region)| Span { rank, region, block, offset: 0, bytes })
}

/// Compares a block with its pattern, after `corrupts` has changed it.
pub(super) fn check_block(
    context: &PlaneContext,
    owner: u64,
    held: &Held,
    corrupts: bool,
) -> Result<(), TransferError> {
    let pages = || whole_pages(context.arena.geometry(), held.block);
    if corrupts && let Some(page) = pages().next() {
        context.arena.corrupt(&page, owner);
    }
    for page in pages() {
        if let Some(offset) = context.arena.first_wrong(&page, held.content) {
            let Span { rank, region, block, .. } = page;
            let message = format!("wrong bytes from offset {offset} of block {block}, rank {rank}, region {region}");
            return Err(TransferError::new(ErrorKind::Corrupt, message));
        }
    }
    Ok(())
}
