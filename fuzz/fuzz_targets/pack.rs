//! No bytes may panic the reader of packs, or make it return a path outside the folder or more than
//! the manifest lists. Half of the inputs are manifests in an otherwise valid pack, which random
//! bytes hardly ever are.
#![no_main]

use std::io::{self, Cursor};

use libfuzzer_sys::fuzz_target;
use vcr_pack::{MANIFEST, check_path, read};

/// A pack whose manifest is `json`, with one empty file.
fn pack(json: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).expect("an encoder"));
    for (path, content) in [(MANIFEST, json), ("s.rhai", b"")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content).expect("it is appended");
    }
    archive.into_inner().and_then(zstd::Encoder::finish).expect("it is finished")
}

fn check(bytes: &[u8]) {
    let mut paths = 0;
    let found = read(Cursor::new(bytes), &mut |entry, content| {
        assert!(check_path(&entry.path).is_ok(), "{}", entry.path);
        assert!(io::copy(content, &mut io::sink())? <= entry.bytes);
        paths += 1;
        Ok(())
    });
    if let Ok(manifest) = found {
        assert_eq!(manifest.files.len(), paths);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    check(&pack(bytes));
    // As an archive without its packing.
    if let Ok(packed) = zstd::encode_all(bytes, 1) {
        check(&packed);
    }
});
