//! Where compiled guests are kept from run to run.

use std::ffi::OsString;

use wasmtime::{Cache, CacheConfig};

/// Names the folder that compiled guests are kept in, in place of the usual one
/// of the user; empty to keep none.
const FOLDER_VARIABLE: &str = "VCR_GUEST_CACHE";

/// The cache of compiled guests, or none where there is no place for one: it
/// saves time and is never needed.
///
/// An entry is found by the hash of the component, the settings of the compiler
/// and its version, so it never goes stale; old ones are cleared away. It is
/// machine code and as trusted as this program is, so it belongs in a folder
/// that only the user can write to, which the usual one is.
pub(crate) fn open() -> Option<Cache> {
    open_in(std::env::var_os(FOLDER_VARIABLE))
}

/// The cache in `folder`, or in the usual one.
fn open_in(folder: Option<OsString>) -> Option<Cache> {
    let mut config = CacheConfig::new();
    match folder {
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

#[cfg(test)]
mod tests {
    use wasmtime::component::Component;
    use wasmtime::{Config, Engine};

    use super::*;

    const COMPONENT: &str = "(component (core module (func (export \"f\"))))";

    fn compile(cache: &Cache) {
        let mut config = Config::new();
        config.cache(Some(cache.clone()));
        let engine = Engine::new(&config).expect("the machine can run wasmtime");
        let bytes = wat::parse_str(COMPONENT).expect("the text is WebAssembly");
        Component::from_binary(&engine, &bytes).expect("it compiles");
    }

    #[test]
    fn a_component_is_compiled_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = open_in(Some(folder.path().into())).expect("the folder will do");
        compile(&first);
        assert_eq!((first.cache_hits(), first.cache_misses()), (0, 1));
        let second = open_in(Some(folder.path().into())).expect("the folder will do");
        compile(&second);
        assert_eq!((second.cache_hits(), second.cache_misses()), (1, 0));
    }

    #[test]
    fn a_damaged_entry_is_compiled_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = open_in(Some(folder.path().into())).expect("the folder will do");
        compile(&cache);
        let mut entries = 0;
        let versions = std::fs::read_dir(folder.path().join("modules")).expect("it was made");
        for version in versions {
            for entry in std::fs::read_dir(version.expect("it is there").path()).expect("a folder") {
                std::fs::write(entry.expect("it is there").path(), b"not compressed").expect("it can be written");
                entries += 1;
            }
        }
        assert!(entries > 0);
        compile(&cache);
        assert_eq!((cache.cache_hits(), cache.cache_misses()), (0, 2));
    }

    #[test]
    fn there_need_be_no_cache() {
        assert!(open_in(Some(OsString::new())).is_none());
        // A file is no folder: the guest is compiled all the same.
        let file = tempfile::NamedTempFile::new().expect("a file");
        if let Some(cache) = open_in(Some(file.path().into())) {
            compile(&cache);
        }
    }
}
