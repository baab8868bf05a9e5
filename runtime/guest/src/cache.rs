//! Where compiled guests are kept from run to run.

use wasmtime::{Cache, CacheConfig};

/// Names the folder that compiled guests are kept in, in place of the usual one
/// of the user; empty to keep none.
const FOLDER_VARIABLE: &str = "VCR_GUEST_CACHE";

/// The cache of compiled guests, or none where there is no place for one: it
/// saves time and is never needed.
///
/// An entry is found by the hash of the component, the settings of the compiler
/// and its version, so it never goes stale; old ones are cleared away. It is
/// machine code and as trusted as this program is, which only its user's own
/// folder may hold.
pub(crate) fn open() -> Option<Cache> {
    let mut config = CacheConfig::new();
    match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) if folder.is_empty() => return None,
        Some(folder) => {
            // The cache wants an absolute path.
            config.with_directory(std::path::absolute(folder).ok()?);
        }
        None => {}
    }
    // Compressing much-used entries again would take a core from the run.
    config.with_optimized_compression_usage_counter_threshold(u64::MAX);
    Cache::new(config).ok()
}
