//! Real transfers of bytes between the engines of a run's two pools.

use std::sync::Arc;

use vcr_cluster::{KvMoved, KvPlane, KvPlaneTime, PoolRole, RunConfig, TargetError, Topology};
use vcr_core::EngineConfig;
use vcr_live::{PlaneSettings, TransferObserver, TransferTime};
use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::{Geometry, GeometryInput, HeadOrder, Plane, Regions};

use super::book::Book;

/// The data plane of the engines in `role`, if the run has one. Transfers to them are recorded in `book`.
pub(crate) fn plane(
    run: &RunConfig,
    role: PoolRole,
    port: u16,
    book: &Book,
) -> Result<Option<PlaneSettings>, TargetError> {
    let (Some(link), Some(pool)) = (run.topology.link(), run.topology.pool(role)) else { return Ok(None) };
    let (Some(plane), Some(engine)) = (link.plane, pool.engine.as_vllm()) else { return Ok(None) };
    let geometry = geometry(run, &plane, link.kv_bytes_per_token, engine)?;
    let settings = TcpSettings { port, ..TcpSettings::default() };
    let observer = (role == PoolRole::Decode).then(|| observer(book.clone()));
    Ok(Some(PlaneSettings {
        factory: Arc::new(move |context| Ok(Box::new(TcpPlane::new(context, settings.clone())?) as Box<dyn Plane>)),
        geometry,
        memory_limit_bytes: None,
        backs_as_used: false,
        time: match plane.time {
            KvPlaneTime::Real => TransferTime::Real,
            KvPlaneTime::Modelled => TransferTime::Modelled,
            KvPlaneTime::SlowerOf => TransferTime::SlowerOf,
        },
        is_pushed: false,
        observer,
    }))
}

/// Checks the sizes for real KV transfers, and that the KV fits the memory of this process.
pub(crate) fn check_plane(run: &RunConfig) -> Result<(), TargetError> {
    let Topology::Disaggregated { prefill, decode, link, .. } = &run.topology else { return Ok(()) };
    let Some(plane) = link.plane else { return Ok(()) };
    let mut needed_bytes = 0_u64;
    for pool in [prefill, decode] {
        let Some(engine) = pool.engine.as_vllm() else { continue };
        let of_engine = geometry(run, &plane, link.kv_bytes_per_token, engine)?.total_bytes();
        needed_bytes = needed_bytes.saturating_add(of_engine.saturating_mul(pool.most_ranks().into()));
    }
    match vcr_base::input::memory::limit() {
        Some(limit_bytes) if needed_bytes > limit_bytes => Err(TargetError::with_hint(
            format!(
                "the KV of all engines of `{}` takes {needed_bytes} bytes, but this process may use {limit_bytes}",
                run.name
            ),
            "give engines a smaller `num_gpu_blocks`, or the link a smaller `kv_bytes_per_token`",
        )),
        _ => Ok(()),
    }
}

fn geometry(
    run: &RunConfig,
    plane: &KvPlane,
    kv_bytes_per_token: u64,
    engine: &EngineConfig,
) -> Result<Geometry, TargetError> {
    let error = |problem: String, hint: &'static str| {
        TargetError::with_hint(format!("`{}` cannot move KV: {problem}", run.name), hint)
    };
    let num_groups = engine.kv_cache_groups().len().max(1) as u32;
    let input = GeometryInput {
        layers: plane.layers.div_ceil(num_groups),
        kv_heads: 1,
        slice_bytes: 1,
        ranks: 1,
        blocks: engine.num_gpu_blocks(),
        block_tokens: engine.block_size(),
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    };
    let Some(block_bytes) = block_bytes(engine, kv_bytes_per_token) else {
        let problem = format!(
            "`kv_bytes_per_token` ({kv_bytes_per_token}) gives the blocks of its {num_groups} KV cache groups no whole \
             number of bytes"
        );
        return Err(error(problem, "blocks of all groups have the same bytes; give a token a multiple of them"));
    };
    input.with_block_bytes(block_bytes).and_then(Geometry::new).map_err(|cause| error(cause.to_string(), BLOCK_HINT))
}

/// Hint for a block size in bytes that is not a whole number.
const BLOCK_HINT: &str = "a block has `kv_bytes_per_token` x `block_size` bytes, divided among KV cache groups; see \
                          `kv_layers` of its link";

/// Bytes of a block, equal in all groups: the bytes of a block's tokens over all layers, divided by the number of
/// blocks in all groups. None if the result is not a whole number.
fn block_bytes(engine: &EngineConfig, kv_bytes_per_token: u64) -> Option<u64> {
    let aligned_tokens = engine.aligned_tokens();
    let sizes = engine.kv_cache_groups().iter().map(|group| group.block_size.unwrap_or(engine.block_size()));
    let blocks: u64 = sizes.map(|size| u64::from(aligned_tokens / size)).sum();
    let bytes = kv_bytes_per_token.saturating_mul(aligned_tokens.into());
    // Without KV cache groups, there is one block.
    let blocks = blocks.max(1);
    bytes.is_multiple_of(blocks).then_some(bytes / blocks)
}

fn observer(book: Book) -> TransferObserver {
    Arc::new(move |ended| {
        let outcome = match ended.outcome {
            Ok(moved) => Ok(KvMoved {
                bytes: moved.bytes,
                pages: moved.pages,
                queue_ns: moved.queue_ns,
                connect_ns: moved.connect_ns,
                move_ns: moved.move_ns,
            }),
            Err(error) => Err(error.kind.name()),
        };
        // Prefill engines come first in the report. If there are several, their ids end with their index.
        let number = ended.peer.engine_id.rsplit_once("_dp").and_then(|(_, number)| number.parse().ok());
        book.transferred(ended.rank, number.unwrap_or(0), ended.at_ns, outcome);
    })
}
