//! Addresses of pages, here and at a peer: the metadata of vLLM's side channel.

use vcr_transfer::{Arena, ErrorKind, Geometry, GeometryInput, HeadOrder, Piece, PlaneContext, Regions, TransferError};
use vcr_wire::{Blob, NixlAgentMetadata, NixlHandshake, VllmMinor};

use crate::NixlSettings;

/// vLLM's names of layouts from 0.29 on: layers outermost, then blocks, then heads and tokens in the named order.
const HEADS_FIRST: &str = "LBHNC";
const TOKENS_FIRST: &str = "LBNHC";
/// Names of the same layouts before 0.29.
const OLD_HEADS_FIRST: &str = "HND";
const OLD_TOKENS_FIRST: &str = "NHD";

/// Maximum length of a worker's metadata: base addresses of a thousand layers, and NIXL's own part.
const MAX_METADATA_BYTES: usize = 1 << 20;

/// The handshake of one rank of this engine, for its peers.
pub(crate) fn own_handshake(
    settings: &NixlSettings,
    context: &PlaneContext,
    agent_metadata: &[u8],
    rank: u32,
) -> NixlHandshake {
    let arena = &context.arena;
    let geometry = arena.geometry();
    let GeometryInput { block_tokens, order, .. } = *geometry.input();
    let regions = geometry.regions();
    let of_regions = |value: u64| vec![value; regions as usize];
    let metadata = NixlAgentMetadata {
        engine_id: context.engine_id.clone(),
        agent_metadata: Blob(agent_metadata.to_vec()),
        kv_caches_base_addr: (0..regions).map(|region| arena.page_address(rank, region, 0) as u64).collect(),
        num_blocks: geometry.blocks().into(),
        block_lens: of_regions(geometry.page_bytes().into()),
        block_strides: of_regions(geometry.page_bytes().into()),
        kv_cache_layout: layout_name(settings.version, order).to_owned(),
        block_size: block_tokens,
        attn_backend_name: settings.compatibility.attn_backend_name.clone(),
        region_mem_types: Some(vec!["DRAM".to_owned(); regions as usize]),
        vcr_ranks: geometry.ranks(),
        vcr_generation: Some(context.generation),
        ..NixlAgentMetadata::default()
    };
    let mut encoded = Vec::new();
    metadata.encode(&mut encoded);
    NixlHandshake { compatibility_hash: settings.compatibility_hash(), agent_metadata_bytes: Blob(encoded) }
}

fn layout_name(version: VllmMinor, order: HeadOrder) -> &'static str {
    match (order, version < VllmMinor::V0_29) {
        (HeadOrder::HeadsFirst, false) => HEADS_FIRST,
        (HeadOrder::HeadsFirst, true) => OLD_HEADS_FIRST,
        (HeadOrder::TokensFirst, false) => TOKENS_FIRST,
        (HeadOrder::TokensFirst, true) => OLD_TOKENS_FIRST,
    }
}

/// Decodes and checks an answer of the peer `name`.
pub(crate) fn peer_metadata(
    settings: &NixlSettings,
    name: &str,
    answer: &[u8],
) -> Result<NixlAgentMetadata, TransferError> {
    let protocol = |reason: String| TransferError::new(ErrorKind::Protocol, format!("KV peer {name}: {reason}"));
    if answer.len() > MAX_METADATA_BYTES {
        return Err(protocol(format!(
            "its metadata has {} bytes, expected at most {MAX_METADATA_BYTES}",
            answer.len()
        )));
    }
    let handshake = NixlHandshake::decode(answer).map_err(|error| protocol(format!("invalid handshake: {error}")))?;
    let own = settings.compatibility_hash();
    if settings.enforces_compatibility && handshake.compatibility_hash != own {
        let message = format!(
            "KV peer {name} is not compatible: its hash of vLLM's version, model and types is {}, the own one is \
             {own}; see --nixl-compatibility",
            handshake.compatibility_hash
        );
        return Err(TransferError::new(ErrorKind::Mismatch, message));
    }
    NixlAgentMetadata::decode(&handshake.agent_metadata_bytes.0)
        .map_err(|error| protocol(format!("invalid metadata: {error}")))
}

#[derive(Debug)]
pub(crate) struct RemoteLayout {
    /// Base addresses and strides, by rank and region.
    regions: Vec<Vec<(u64, u64)>>,
    num_blocks: u64,
    /// The mapping of the peer's pages to the pages of this engine.
    pieces: Vec<Piece>,
}

impl RemoteLayout {
    /// Checks the metadata of all ranks of the peer `name`, and computes its layout.
    pub(crate) fn new(local: &Geometry, name: &str, ranks: &[NixlAgentMetadata]) -> Result<Self, TransferError> {
        let mismatch = |reason: String| TransferError::new(ErrorKind::Mismatch, format!("KV peer {name}: {reason}"));
        let Some(first) = ranks.first() else { return Err(mismatch("it has no ranks".to_owned())) };
        let remote = remote_geometry(local, first, ranks.len()).map_err(mismatch)?;
        let pieces = local.pieces(&remote).map_err(|difference| mismatch(difference.to_string()))?;
        let mut regions = Vec::new();
        for (rank, metadata) in ranks.iter().enumerate() {
            let of_rank = regions_of(metadata, &remote)
                .map_err(|reason| mismatch(format!("the metadata of its rank {rank}: {reason}")))?;
            regions.push(of_rank);
        }
        Ok(Self { regions, num_blocks: first.num_blocks, pieces })
    }

    /// The parts of a page, each of which comes from one rank of the peer.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(crate) fn num_blocks(&self) -> u64 {
        self.num_blocks
    }

    /// Address of the peer's part that corresponds to a piece.
    pub(crate) fn address(&self, piece: &Piece, region: u32, block: u32) -> u64 {
        let (base, stride) = self.regions[piece.remote_rank as usize][region as usize];
        base + u64::from(block) * stride + u64::from(piece.remote_offset)
    }
}

/// The geometry of a peer with this number of ranks. The hash ensures that its model is the same.
fn remote_geometry(local: &Geometry, metadata: &NixlAgentMetadata, ranks: usize) -> Result<Geometry, String> {
    let own = *local.input();
    let ranks = u32::try_from(ranks).map_err(|_| "it has too many ranks".to_owned())?;
    let order = match metadata.kv_cache_layout.as_str() {
        HEADS_FIRST | OLD_HEADS_FIRST => HeadOrder::HeadsFirst,
        TOKENS_FIRST | OLD_TOKENS_FIRST => HeadOrder::TokensFirst,
        other => return Err(format!("its layout is {other}, expected {HEADS_FIRST} or {TOKENS_FIRST}")),
    };
    let page_bytes = metadata.block_lens.first().copied().unwrap_or(0);
    let heads = (own.kv_heads / ranks.max(1)).max(1);
    let slices = heads * if own.regions == Regions::Together { 2 } else { 1 };
    let slice_bytes =
        u32::try_from(page_bytes).ok().filter(|bytes| bytes.is_multiple_of(slices)).map(|bytes| bytes / slices);
    let slice_bytes = slice_bytes.ok_or_else(|| format!("its pages have {page_bytes} bytes, for {heads} KV heads"))?;
    let blocks = u32::try_from(metadata.num_blocks).map_err(|_| format!("it has {} blocks", metadata.num_blocks))?;
    let input = GeometryInput { slice_bytes, ranks, blocks, block_tokens: metadata.block_size, order, ..own };
    Geometry::new(input).map_err(|error| error.to_string())
}

/// Base addresses and strides of the regions of a rank.
fn regions_of(metadata: &NixlAgentMetadata, remote: &Geometry) -> Result<Vec<(u64, u64)>, String> {
    let expected = remote.regions() as usize;
    let bases = &metadata.kv_caches_base_addr;
    let page_bytes = u64::from(remote.page_bytes());
    // Before 0.29, blocks are contiguous.
    let strides = if metadata.block_strides.is_empty() { &metadata.block_lens } else { &metadata.block_strides };
    for (name, len) in
        [("addresses", bases.len()), ("block lengths", metadata.block_lens.len()), ("strides", strides.len())]
    {
        if len != expected {
            return Err(format!("{len} {name}, expected {expected}"));
        }
    }
    if metadata.num_blocks != u64::from(remote.blocks()) {
        return Err(format!("{} blocks, expected {}", metadata.num_blocks, remote.blocks()));
    }
    if let Some(other) = metadata.block_lens.iter().find(|bytes| **bytes != page_bytes) {
        return Err(format!("blocks of {other} and of {page_bytes} bytes"));
    }
    let mut regions = Vec::with_capacity(expected);
    for (&base, &stride) in bases.iter().zip(strides) {
        let end = stride.checked_mul(metadata.num_blocks).and_then(|bytes| base.checked_add(bytes));
        if stride < page_bytes || end.is_none() {
            return Err(format!("a region at {base:#x} with blocks every {stride} bytes"));
        }
        regions.push((base, stride));
    }
    Ok(regions)
}

/// The first address of the arena and its length.
pub(crate) fn arena_range(arena: &Arena) -> (usize, usize) {
    (arena.page_address(0, 0, 0), arena.geometry().total_bytes() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(ranks: u32, blocks: u32) -> Geometry {
        let input = GeometryInput {
            layers: 2,
            kv_heads: 4,
            slice_bytes: 64,
            ranks,
            blocks,
            block_tokens: 16,
            order: HeadOrder::HeadsFirst,
            regions: Regions::Apart,
        };
        Geometry::new(input).expect("the sizes fit")
    }

    fn metadata(geometry: &Geometry, base: u64) -> NixlAgentMetadata {
        let regions = geometry.regions() as usize;
        NixlAgentMetadata {
            engine_id: "peer".to_owned(),
            kv_caches_base_addr: (0..regions as u64).map(|region| base + region * 0x1000).collect(),
            num_blocks: geometry.blocks().into(),
            block_lens: vec![geometry.page_bytes().into(); regions],
            block_strides: vec![0x400; regions],
            kv_cache_layout: HEADS_FIRST.to_owned(),
            block_size: 16,
            ..NixlAgentMetadata::default()
        }
    }

    #[test]
    fn pages_are_found_by_rank_region_and_block() {
        let (local, remote) = (geometry(1, 8), geometry(2, 4));
        let ranks = [metadata(&remote, 0x1_0000), metadata(&remote, 0x2_0000)];
        let layout = RemoteLayout::new(&local, "peer", &ranks).expect("they fit");
        let [first, second] = layout.pieces() else { panic!("{:?}", layout.pieces()) };
        assert_eq!((first.local_offset, second.local_offset, second.bytes), (0, 128, 128));
        assert_eq!(layout.address(first, 0, 0), 0x1_0000);
        assert_eq!(layout.address(second, 3, 2), 0x2_3000 + 2 * 0x400);
    }

    #[test]
    fn vllm_has_a_region_for_each_layer() {
        let input = GeometryInput { layers: 61, regions: Regions::Together, ..*geometry(1, 8).input() };
        let (local, remote) = (input, GeometryInput { ranks: 2, blocks: 4, ..input });
        let [local, remote] = [local, remote].map(|input| Geometry::new(input).expect("the sizes fit"));
        assert_eq!((local.regions(), local.page_bytes()), (61, 4 * 2 * 64));
        let ranks = [metadata(&remote, 0x1_0000), metadata(&remote, 0x10_0000)];
        let layout = RemoteLayout::new(&local, "peer", &ranks).expect("they fit");
        let [first, second] = layout.pieces() else { panic!("{:?}", layout.pieces()) };
        assert_eq!((first.local_offset, second.local_offset, second.bytes), (0, 256, 256));
        assert_eq!(layout.address(second, 60, 1), 0x10_0000 + 60 * 0x1000 + 0x400);
        // A peer with separate regions for K and V has as many bytes, but twice as many regions.
        let apart = Geometry::new(GeometryInput { regions: Regions::Apart, ..input }).expect("the sizes fit");
        let error = RemoteLayout::new(&local, "peer", &[metadata(&apart, 0)]).expect_err("regions differ").to_string();
        assert!(error.contains("bytes of a block (see --kv-block-bytes) differ"), "{error}");
    }

    #[test]
    fn layouts_have_other_names_from_0_29_on() {
        assert_eq!(layout_name(VllmMinor::V0_28, HeadOrder::HeadsFirst), "HND");
        assert_eq!(layout_name(VllmMinor::V0_29, HeadOrder::HeadsFirst), "LBHNC");
    }

    fn settings(model: &str) -> NixlSettings {
        let compatibility = vcr_wire::NixlCompatibility {
            vllm_version: "0.33.0".to_owned(),
            model: model.to_owned(),
            dtype: "bfloat16".to_owned(),
            num_kv_heads: 4,
            head_size: 64,
            num_hidden_layers: 2,
            attn_backend_name: "FLASH_ATTN".to_owned(),
            cache_dtype: "auto".to_owned(),
            is_hma_enabled: true,
            transfer_mode: "pull".to_owned(),
        };
        NixlSettings {
            side_channel_host: "127.0.0.1".to_owned(),
            side_channel_port: 1,
            version: VllmMinor::V0_33,
            compatibility,
            hash: None,
            enforces_compatibility: true,
        }
    }

    #[test]
    fn answers_that_are_cut_off_too_long_or_of_others_are_refused_by_name() {
        let encoded = |compatibility_hash: String, whole: usize| {
            let mut of_agent = Vec::new();
            metadata(&geometry(1, 4), 0x1_0000).encode(&mut of_agent);
            of_agent.truncate(whole);
            let mut answer = Vec::new();
            NixlHandshake { compatibility_hash, agent_metadata_bytes: Blob(of_agent) }.encode(&mut answer);
            answer
        };
        let own = settings("sim");
        let refused = |answer: &[u8]| match peer_metadata(&own, "peer:1", answer) {
            Ok(_) => panic!("it is taken"),
            Err(error) => (error.kind, error.message),
        };
        let answer = encoded(own.compatibility_hash(), usize::MAX);
        assert_eq!(peer_metadata(&own, "peer:1", &answer).map(|it| it.num_blocks), Ok(4));
        for len in 0..answer.len() {
            let (kind, message) = refused(&answer[..len]);
            assert_eq!(kind, ErrorKind::Protocol, "{message}");
            assert!(message.starts_with("KV peer peer:1: invalid handshake"), "{message}");
        }
        for len in [0, 1, 40] {
            let (kind, message) = refused(&encoded(own.compatibility_hash(), len));
            assert_eq!(kind, ErrorKind::Protocol, "{message}");
            assert!(message.starts_with("KV peer peer:1: invalid metadata"), "{message}");
        }
        let (kind, message) = refused(&vec![0; MAX_METADATA_BYTES + 1]);
        assert_eq!(kind, ErrorKind::Protocol, "{message}");
        assert!(message.contains(&format!("expected at most {MAX_METADATA_BYTES}")), "{message}");
        let (kind, message) = refused(&encoded(settings("another").compatibility_hash(), usize::MAX));
        assert!(kind == ErrorKind::Mismatch && message.contains("is not compatible"), "{message}");
    }

    #[test]
    fn a_peer_that_lies_about_sizes_is_refused_by_name() {
        let local = geometry(1, 8);
        let refused = |change: &dyn Fn(&mut NixlAgentMetadata)| {
            let mut metadata = metadata(&geometry(1, 4), 0x1_0000);
            change(&mut metadata);
            RemoteLayout::new(&local, "peer:1", &[metadata]).expect_err("it does not fit").to_string()
        };
        for (change, wanted) in [
            (&(|metadata: &mut NixlAgentMetadata| metadata.block_size = 32) as &dyn Fn(&mut _), "tokens of a block"),
            (&|metadata: &mut NixlAgentMetadata| _ = metadata.kv_caches_base_addr.pop(), "3 addresses, expected 4"),
            (&|metadata: &mut NixlAgentMetadata| metadata.block_lens[2] = 8, "blocks of 8 and of 256 bytes"),
            (&|metadata: &mut NixlAgentMetadata| metadata.block_strides[1] = 8, "blocks every 8 bytes"),
            (&|metadata: &mut NixlAgentMetadata| metadata.kv_caches_base_addr[0] = u64::MAX, "a region at 0xffff"),
            (&|metadata: &mut NixlAgentMetadata| metadata.kv_cache_layout = "BLHNC".to_owned(), "layout is BLHNC"),
            (&|metadata: &mut NixlAgentMetadata| metadata.num_blocks = u64::MAX, "blocks"),
            (&|metadata: &mut NixlAgentMetadata| metadata.block_lens.clear(), "slice bytes is 0"),
        ] {
            let message = refused(change);
            assert!(message.starts_with("KV peer peer:1: ") && message.contains(wanted), "{message}");
        }
        assert!(RemoteLayout::new(&local, "peer:1", &[]).is_err());
    }
}
