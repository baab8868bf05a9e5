//! The interfaces of guests, in `wit/`.

use vcr_tests::root;
use wit_parser::{Resolve, WorldItem};

/// `wit/` has the package of the current version, with all worlds. A folder `wit/vX_Y` has a package of an older
/// version that is still supported.
#[test]
fn the_interfaces_parse_and_lie_in_the_folder_of_their_version() {
    let wit = root().join("wit");
    let entries = std::fs::read_dir(&wit).expect("there are interfaces");
    let older = entries.map(|entry| entry.expect("it can be listed").path()).filter(|path| path.is_dir());
    for folder in std::iter::once(wit.clone()).chain(older) {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir(&folder).unwrap_or_else(|error| panic!("{}: {error:?}", folder.display()));
        let name = &resolve.packages[package].name;
        assert_eq!(format!("{}:{}", name.namespace, name.name), "vcr:guest");
        if folder == wit {
            let worlds =
                ["latency-model", "token-source", "failure-injector", "scheduler-policy", "router", "autoscaler"];
            for world in worlds {
                assert!(resolve.packages[package].worlds.contains_key(world), "{} has no `{world}`", folder.display());
            }
        } else {
            let version = name.version.as_ref().expect("the package has a version");
            let expected = format!("v{}_{}", version.major, version.minor);
            assert_eq!(folder.file_name().and_then(|name| name.to_str()), Some(expected.as_str()));
        }
        for (_, world) in &resolve.worlds {
            for import in world.imports.values() {
                let WorldItem::Interface { id, .. } = import else { panic!("`{}` imports no interface", world.name) };
                let name = resolve.interfaces[*id].name.as_deref();
                let may_omit = world.name == "router" && name == Some("details");
                let may_remark = world.name == "token-source" && matches!(name, Some("requests" | "drafts"));
                let is_of_all = matches!(name, Some("observe" | "types"));
                // These functions return more inputs of the current call, so calls remain the guest's only inputs.
                let says_more = world.name == "latency-model" && name == Some("groups");
                assert!(is_of_all || may_remark || may_omit || says_more, "`{}` imports {name:?}", world.name);
                // Functions of the other interfaces return nothing.
                let mut functions = resolve.interfaces[*id].functions.values();
                assert!(says_more || functions.all(|function| function.result.is_none()));
            }
        }
    }
}
