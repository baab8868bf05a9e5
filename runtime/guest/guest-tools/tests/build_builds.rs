//! Builds real guests, and directories that are not guests.

use std::fs;
use std::path::Path;

use vcr_guest_tools::build::{BuildError, Options, build, build_workspace};

fn guests_dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guests")
}

#[test]
fn the_guests_of_this_repository_build() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let options = Options::from_env().expect("the environment is sane");
    let built = match build_workspace(&guests_dir(), out.path(), &options, &mut |_| {}) {
        Ok(built) => built,
        // A machine without a compiler for wasm32 is not an error of this crate.
        Err(error @ BuildError::NoToolchain { .. }) => return vcr_skips::skip(&error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let names: Vec<&str> = built.iter().map(|guest| guest.name.as_str()).collect();
    let shipped = [
        "chaos",
        "fair-share",
        "fitted",
        "json-tokens",
        "prefix-affinity",
        "roofline",
        "shortest-prompt-first",
        "target-load",
        "thermal",
        "trained-physics",
    ];
    assert_eq!(names, shipped);
    for guest in &built {
        let bytes = fs::read(&guest.component).expect("the component was written");
        assert_eq!(bytes.len() as u64, guest.size_bytes);
        // Version 0x0d of layer 1 marks a component, not a core module.
        assert_eq!(bytes[..8], *b"\0asm\x0d\0\x01\0");
        let root = guests_dir().canonicalize().expect("it exists");
        let root = root.parent().expect("a parent").to_string_lossy().into_owned();
        assert!(
            !bytes.windows(root.len()).any(|window| window == root.as_bytes()),
            "the path of this machine is in the guest"
        );
    }

    let again = build(&guests_dir().join("thermal"), out.path(), &options, &mut |_| {});
    let first = built.iter().find(|guest| guest.name == "thermal").expect("it was built");
    assert_eq!(again.expect("it builds again"), *first, "the same bytes");
}

#[test]
fn directories_that_are_no_guests_are_refused() {
    let options = Options::default();
    let refused = |dir: &Path| {
        let out = tempfile::tempdir().expect("a temporary directory");
        build(dir, out.path(), &options, &mut |_| {}).expect_err("no guest")
    };

    let empty = tempfile::tempdir().expect("a temporary directory");
    let error = refused(empty.path());
    assert!(error.to_string().contains("is not a crate"), "{error}");

    let library = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(library.path().join("src")).expect("it is empty");
    fs::write(library.path().join("src/lib.rs"), "").expect("it is writable");
    fs::write(
        library.path().join("Cargo.toml"),
        "[package]\nname = \"plain\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n",
    )
    .expect("it is writable");
    let error = refused(library.path());
    assert_eq!(error.to_string(), "package `plain` is not a guest: it has no library of type `cdylib`");
    assert!(error.hint().is_some_and(|hint| hint.contains("crate-type")));

    let out = tempfile::tempdir().expect("a temporary directory");
    let error = build_workspace(library.path(), out.path(), &options, &mut |_| {});
    assert!(matches!(error, Err(BuildError::NoGuests { .. })));
    assert!(refused(Path::new("no/such/dir")).to_string().starts_with("cannot read"));
}
