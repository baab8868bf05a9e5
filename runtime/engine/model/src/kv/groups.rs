//! Caches of layers as groups (vLLM's `get_kv_cache_groups`).

use super::spec::Spec;
use super::{KvGroup, KvKind};
use crate::error::ModelError;

/// Caches by the part of the engine that they are of.
pub(super) struct Parts {
    /// Behind the last cache of the model in each stage; those of the drafter are in the last one.
    pub(super) stage_ends: Vec<usize>,
    /// The first cache of the drafter.
    pub(super) first_of_drafter: usize,
}

/// The groups of these caches.
pub(super) fn of(
    model: &str,
    mut specs: Vec<Spec>,
    parts: &Parts,
    is_hybrid_off: bool,
) -> Result<Vec<KvGroup>, ModelError> {
    let has_full = specs.iter().any(|spec| spec.kind == KvKind::Full);
    if is_hybrid_off && has_full {
        // Blocks are kept for all tokens, whatever a layer computes with.
        for spec in &mut specs {
            if spec.kind.window_tokens().is_some() {
                spec.kind = KvKind::Full;
            }
        }
    }
    let Some(first) = specs.first().copied() else {
        let reason = "expected a layer with attention or a state".to_owned();
        return Err(ModelError::File { place: model.to_owned(), reason });
    };
    if specs.iter().all(|spec| spec.block_size == first.block_size && is_one_type(first.kind, spec.kind)) {
        let members: Vec<usize> = (0..specs.len()).collect();
        return Ok(vec![group(&specs, &members, parts)]);
    }
    unify_pages(model, &mut specs)?;
    Ok(of_equal_pages(&specs, parts))
}

/// The group of caches of one kind, which are numbered in the order of their layers.
fn group(specs: &[Spec], members: &[usize], parts: &Parts) -> KvGroup {
    let stage_ends = &parts.stage_ends;
    let mut stage_page_bytes = vec![0; stage_ends.len()];
    for &member in members {
        let stage = stage_ends.partition_point(|end| *end <= member).min(stage_ends.len() - 1);
        stage_page_bytes[stage] += specs[member].page_bytes;
    }
    let Spec { kind, block_size, .. } = specs[members[0]];
    let page_bytes = stage_page_bytes.iter().sum();
    let has_drafter = members.iter().any(|&member| member >= parts.first_of_drafter);
    KvGroup { kind, layers: members.len(), block_size, page_bytes, stage_page_bytes, has_drafter }
}

/// Whether layers of these kinds always need the same blocks.
fn is_one_type(kind: KvKind, other: KvKind) -> bool {
    let is_full = |kind| matches!(kind, KvKind::Full | KvKind::Latent);
    kind == other || is_full(kind) && is_full(other)
}

/// Gives all caches pages of the size of the largest: with more tokens, or with padding.
fn unify_pages(model: &str, specs: &mut [Spec]) -> Result<(), ModelError> {
    let page_bytes = specs.iter().map(|spec| spec.page_bytes).max().unwrap_or(0);
    for spec in specs {
        if !matches!(spec.kind, KvKind::State { .. }) && page_bytes.is_multiple_of(spec.page_bytes) {
            spec.block_size *= page_bytes / spec.page_bytes;
        } else if spec.kind == KvKind::Latent {
            let reason = format!(
                "a page of {} bytes does not divide the largest, of {page_bytes}, and cannot be padded",
                spec.page_bytes
            );
            return Err(ModelError::File { place: model.to_owned(), reason });
        }
        spec.page_bytes = page_bytes;
    }
    Ok(())
}

/// Groups of as many layers as the rarest kind has, or the most frequent one if that is not much more
/// (`_get_kv_cache_groups_uniform_page_size`).
fn of_equal_pages(specs: &[Spec], parts: &Parts) -> Vec<KvGroup> {
    let mut kinds: Vec<(Spec, Vec<usize>)> = Vec::new();
    for (number, spec) in specs.iter().enumerate() {
        match kinds.iter_mut().find(|(known, _)| known == spec) {
            Some((_, members)) => members.push(number),
            None => kinds.push((*spec, vec![number])),
        }
    }
    let fewest = kinds.iter().map(|(_, members)| members.len()).min().unwrap_or(1);
    let most = kinds.iter().map(|(_, members)| members.len()).max().unwrap_or(1);
    let size = if 2 * most < 3 * fewest { most } else { fewest };
    let mut groups = Vec::new();
    for (_, members) in kinds {
        let count = members.len().div_ceil(size);
        // In turns, so that each stage has as many layers of each group.
        for number in 0..count {
            let own: Vec<usize> = members.iter().copied().skip(number).step_by(count).collect();
            groups.push(group(specs, &own, parts));
        }
    }
    groups
}
