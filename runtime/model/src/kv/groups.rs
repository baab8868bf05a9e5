//! Caches of layers as groups (vLLM's `get_kv_cache_groups`).

use super::spec::Spec;
use super::{KvGroup, KvKind};
use crate::error::ModelError;

/// The groups of these caches.
pub(super) fn of(model: &str, mut specs: Vec<Spec>, is_hybrid_off: bool) -> Result<Vec<KvGroup>, ModelError> {
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
        let page_bytes = specs.iter().map(|spec| spec.page_bytes).sum();
        return Ok(vec![KvGroup { kind: first.kind, layers: specs.len(), block_size: first.block_size, page_bytes }]);
    }
    unify_pages(model, &mut specs)?;
    Ok(of_equal_pages(&specs))
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
fn of_equal_pages(specs: &[Spec]) -> Vec<KvGroup> {
    let mut kinds: Vec<(Spec, usize)> = Vec::new();
    for spec in specs {
        match kinds.iter_mut().find(|(known, _)| known == spec) {
            Some((_, count)) => *count += 1,
            None => kinds.push((*spec, 1)),
        }
    }
    let fewest = kinds.iter().map(|(_, count)| *count).min().unwrap_or(1);
    let most = kinds.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let size = if 2 * most < 3 * fewest { most } else { fewest };
    let mut groups = Vec::new();
    for (spec, count) in kinds {
        let parts = count.div_ceil(size);
        for part in 0..parts {
            let layers = (count - part).div_ceil(parts);
            let page_bytes = spec.page_bytes * layers as u64;
            groups.push(KvGroup { kind: spec.kind, layers, block_size: spec.block_size, page_bytes });
        }
    }
    groups
}
