//! The interfaces of guests, as they lie in `wit/`.

use std::path::PathBuf;

use vcr_tests::root;
use wit_parser::{Resolve, WorldItem};

/// Each folder `wit/vX_Y` holds the package of that version, with our worlds.
#[test]
fn the_interfaces_parse_and_lie_in_the_folder_of_their_version() {
    let entries = std::fs::read_dir(root().join("wit")).expect("there are interfaces");
    let folders: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    let versions: Vec<&PathBuf> = folders.iter().filter(|path| path.is_dir()).collect();
    assert!(!versions.is_empty(), "no version of the interface was found");
    for folder in versions {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir(folder).unwrap_or_else(|error| panic!("{}: {error:?}", folder.display()));
        let name = &resolve.packages[package].name;
        assert_eq!(format!("{}:{}", name.namespace, name.name), "vcr:guest");
        let version = name.version.as_ref().expect("the package has a version");
        let expected = format!("v{}_{}", version.major, version.minor);
        assert_eq!(folder.file_name().and_then(|name| name.to_str()), Some(expected.as_str()));
        for world in ["latency-model", "token-source", "failure-injector"] {
            assert!(resolve.packages[package].worlds.contains_key(world), "{} has no `{world}`", folder.display());
        }
        for (_, world) in &resolve.worlds {
            for import in world.imports.values() {
                let WorldItem::Interface { id, .. } = import else { panic!("`{}` imports no interface", world.name) };
                // All that they have are functions that return nothing.
                let name = resolve.interfaces[*id].name.as_deref();
                let may_remark = world.name == "token-source" && matches!(name, Some("requests" | "drafts"));
                assert!(name == Some("observe") || may_remark, "`{}` imports {name:?}", world.name);
                assert!(resolve.interfaces[*id].functions.values().all(|function| function.result.is_none()));
            }
        }
    }
}
