//! Bytes that move between the engines of a run's two pools.

use std::sync::Arc;

use vcr_cluster::{KvMoved, KvPlane, KvPlaneTime, PoolRole, RunConfig, TargetError, Topology};
use vcr_live::{PlaneSettings, TransferObserver, TransferTime};
use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::{Geometry, GeometryInput, HeadOrder, Plane, Regions};

use super::book::Book;

/// The data plane to or from the engines of the pool in `role`, if there is one. Transfers to them are entered in `book`.
///
/// # Errors
/// When the sizes do not fit together.
pub(crate) fn plane(
    run: &RunConfig,
    role: PoolRole,
    port: u16,
    book: &Book,
) -> Result<Option<PlaneSettings>, TargetError> {
    let (Some(link), Some(pool)) = (run.topology.link(), run.topology.pool(role)) else { return Ok(None) };
    let (Some(plane), Some(engine)) = (link.plane, pool.engine.as_vllm()) else { return Ok(None) };
    let geometry = geometry(run, role, &plane, engine.num_gpu_blocks)?;
    let settings = TcpSettings { port, ..TcpSettings::default() };
    let observer = (role == PoolRole::Decode).then(|| observer(book.clone()));
    Ok(Some(PlaneSettings {
        factory: Arc::new(move |context| Ok(Box::new(TcpPlane::new(context, settings.clone())?) as Box<dyn Plane>)),
        geometry,
        memory_limit_bytes: None,
        time: match plane.time {
            KvPlaneTime::Real => TransferTime::Real,
            KvPlaneTime::Modelled => TransferTime::Modelled,
            KvPlaneTime::SlowerOf => TransferTime::SlowerOf,
        },
        is_pushed: false,
        observer,
    }))
}

/// Checks the sizes of a run whose KV is to move, and that they fit the memory of this process.
///
/// # Errors
/// When they do not.
pub(crate) fn check_plane(run: &RunConfig) -> Result<(), TargetError> {
    let Topology::Disaggregated { prefill, decode, link, .. } = &run.topology else { return Ok(()) };
    let Some(plane) = link.plane else { return Ok(()) };
    let mut needed_bytes = 0_u64;
    for (role, pool) in [(PoolRole::Prefill, prefill), (PoolRole::Decode, decode)] {
        let Some(engine) = pool.engine.as_vllm() else { continue };
        if engine.kv_cache_groups.len() > 1 {
            return Err(TargetError::with_hint(
                format!(
                    "`{}` cannot move KV: the engines of pool `{}` have several KV cache groups",
                    run.name, pool.name
                ),
                "leave `kv_transfer` of its link out, and transfers take a modelled time",
            ));
        }
        let of_engine = geometry(run, role, &plane, engine.num_gpu_blocks)?.total_bytes();
        needed_bytes = needed_bytes.saturating_add(of_engine.saturating_mul(pool.most_ranks().into()));
    }
    match vcr_input::memory::limit() {
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

fn geometry(run: &RunConfig, role: PoolRole, plane: &KvPlane, blocks: u32) -> Result<Geometry, TargetError> {
    let (link, pool) = (run.topology.link(), run.topology.pool(role));
    let block_tokens = pool.map_or(0, |pool| pool.engine.block_size());
    let block_bytes = link.map_or(0, |link| link.kv_bytes_per_token).saturating_mul(block_tokens.into());
    let input = GeometryInput {
        layers: plane.layers,
        kv_heads: 1,
        slice_bytes: 1,
        ranks: 1,
        blocks,
        block_tokens,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    };
    input.with_block_bytes(block_bytes).and_then(Geometry::new).map_err(|error| {
        TargetError::with_hint(
            format!("`{}` cannot move KV: {error}", run.name),
            "a block has `kv_bytes_per_token` x `block_size` bytes; see `kv_layers` of its link",
        )
    })
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
        // Prefill engines are the report's first, and their names end with their number if there are several.
        let number = ended.peer.engine_id.rsplit_once("_dp").and_then(|(_, number)| number.parse().ok());
        book.transferred(ended.rank, number.unwrap_or(0), ended.at_ns, outcome);
    })
}
