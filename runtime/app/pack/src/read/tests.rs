//! Manipulated packs.

use std::io::Cursor;

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::manifest::{Expected, FORMAT, Settings, VERSION};
use crate::write::{Content, PackFile, write};

fn manifest() -> Manifest {
    Manifest {
        format: FORMAT.to_owned(),
        version: VERSION,
        vcr_version: "0".to_owned(),
        scenario: "s.rhai".to_owned(),
        settings: Settings::default(),
        redacted: false,
        inputs: Vec::new(),
        expected: Expected::default(),
        files: Vec::new(),
    }
}

fn file(path: &str, content: &str) -> PackFile {
    PackFile { path: path.to_owned(), content: Content::Bytes(content.as_bytes().to_vec()) }
}

fn packed() -> Vec<u8> {
    let mut bytes = Vec::new();
    let files = vec![file("s.rhai", "run()"), file("deep/a.jsonl", "{}\n")];
    let _ = write(&mut bytes, manifest(), files).expect("it is written");
    bytes
}

/// A pack with these entries: path, type, content.
fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
    let mut archive = Builder::new(zstd::Encoder::new(Vec::new(), 3).expect("an encoder"));
    for (path, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        // Set the header directly, to bypass the library's path checks.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        if kind.is_symlink() {
            header.as_old_mut().linkname[..4].copy_from_slice(b"/etc");
        }
        header.set_cksum();
        archive.append(&header, *content).expect("it is appended");
    }
    archive.into_inner().and_then(zstd::Encoder::finish).expect("it is finished")
}

fn error(bytes: &[u8]) -> String {
    read(Cursor::new(bytes), &mut |_, _| Ok(())).expect_err("it is refused").to_string()
}

fn json(change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let mut value = serde_json::to_value(manifest()).expect("it is JSON");
    let empty = hex::encode(Sha256::digest(b""));
    value["files"] = serde_json::json!([{"path": "s.rhai", "bytes": 0, "sha256": empty}]);
    change(&mut value);
    serde_json::to_vec(&value).expect("it is JSON")
}

#[test]
fn a_pack_is_read_as_it_was_written_and_written_the_same_twice() {
    assert_eq!(packed(), packed());
    let mut contents = Vec::new();
    let found = read(Cursor::new(packed()), &mut |entry, content| {
        let mut text = String::new();
        content.read_to_string(&mut text)?;
        contents.push((entry.path.clone(), text));
        Ok(())
    });
    assert_eq!(found.expect("it is right").files.len(), 2);
    let expected = [("deep/a.jsonl", "{}\n"), ("s.rhai", "run()")];
    assert_eq!(contents, expected.map(|(path, text)| (path.to_owned(), text.to_owned())));
}

#[test]
fn a_pack_is_unpacked_into_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.vcr");
    fs::write(&path, packed()).expect("it is written");
    assert!(is_pack(&path));
    let into = folder.path().join("out");
    let _ = unpack(&path, &into).expect("it is right");
    assert_eq!(fs::read_to_string(into.join("deep/a.jsonl")).expect("it is there"), "{}\n");
    assert!(unpack(&path, &into).is_err(), "nothing is replaced");
    fs::write(&path, "run(#{})").expect("it is written");
    assert!(!is_pack(&path));
}

#[test]
fn a_pack_that_is_cut_off_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.bin");
    let whole = packed();
    for length in [5, 20, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).expect("it is written");
        assert!(is_meant_as_pack(&path));
        assert!(matches!(verify(&path), Err(PackError::CutOff)), "{length} of {}: {:?}", whole.len(), verify(&path));
    }
    fs::write(&path, "run(#{})").expect("it is written");
    assert!(!is_meant_as_pack(&path));
    let named = folder.path().join("p.vcr");
    fs::write(&named, &whole[..2]).expect("it is written");
    assert!(is_meant_as_pack(&named) && matches!(verify(&named), Err(PackError::NotAPack)));
}

#[test]
fn what_the_manifest_does_not_allow_is_refused() {
    let regular = EntryType::Regular;
    let good = json(|_| ());
    assert!(
        read(Cursor::new(archive(&[(MANIFEST, regular, &good), ("s.rhai", regular, b"")])), &mut |_, _| Ok(())).is_ok()
    );
    let with = |path, kind, content| error(&archive(&[(MANIFEST, regular, &good), (path, kind, content)]));
    assert!(with("s.rhai", EntryType::Symlink, b"").contains("is a link"));
    assert!(with("s.rhai", EntryType::Link, b"").contains("is a link"));
    assert!(with("s.rhai", EntryType::Directory, b"").contains("is a link, a folder"));
    assert!(with("s.rhai", regular, b"x").contains("has 1 bytes: its manifest has 0"));
    assert!(with("../s.rhai", regular, b"").contains("holds `../s.rhai`"));
    let more = archive(&[(MANIFEST, regular, &good), ("s.rhai", regular, b""), ("t", regular, b"")]);
    assert!(error(&more).contains("holds `t` where its manifest has `nothing`"));
    assert!(error(&archive(&[(MANIFEST, regular, &good)])).contains("holds `its end` where its manifest has `s.rhai`"));
    assert!(error(&archive(&[("s.rhai", regular, b"")])).starts_with("not a pack"));
    assert!(error(b"plain").starts_with("not a pack"));
    let wrong = json(|value| value["files"][0]["sha256"] = "00".into());
    assert!(error(&archive(&[(MANIFEST, regular, &wrong), ("s.rhai", regular, b"")])).contains("has the SHA-256"));
}

#[test]
fn a_wrong_manifest_is_refused() {
    let with = |change: fn(&mut serde_json::Value)| error(&archive(&[(MANIFEST, EntryType::Regular, &json(change))]));
    assert!(with(|value| value["version"] = 2.into()).contains("version 2 of its format"));
    assert!(with(|value| value["format"] = "tar".into()).starts_with("not a pack"));
    for path in ["../s.rhai", "/etc/passwd", "a/../../b", ""] {
        let text =
            error(&archive(&[(MANIFEST, EntryType::Regular, &json(|value| value["files"][0]["path"] = path.into()))]));
        assert!(text.starts_with("invalid path"), "{text}");
    }
    assert!(with(|value| value["scenario"] = "t.rhai".into()).contains("is not among the files"));
    let twice = |value: &mut serde_json::Value| {
        value["files"] = [&value["files"][0], &value["files"][0]].map(Clone::clone).to_vec().into()
    };
    assert!(with(twice).contains("listed twice"));
    let under = |value: &mut serde_json::Value| {
        let mut below = value["files"][0].clone();
        below["path"] = "s.rhai/x".into();
        value["files"].as_array_mut().expect("a list").push(below);
    };
    assert!(with(under).contains("a file and a folder"));
}

proptest! {
    /// Any changed byte and any truncation is detected.
    #[test]
    fn damage_is_noticed(at in 0usize..10_000, by in 1u8..=255, cuts in any::<bool>()) {
        let mut bytes = packed();
        let at = at % bytes.len();
        if cuts { bytes.truncate(at) } else { bytes[at] ^= by }
        let mut contents = 0;
        let found = read(Cursor::new(&bytes), &mut |_, content| {
            contents += io::copy(content, &mut io::sink())?;
            Ok(())
        });
        // Some bits of a zstd frame have no effect; then the contents are unchanged.
        if let Ok(manifest) = found {
            prop_assert_eq!(manifest.files.len(), 2);
        }
    }
}
