//! The statement of where files come from: SLSA's provenance in in-toto's frame. It has no time
//! and no name of a machine, so that whoever builds the same inputs can compare it byte by byte.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::checkout::Checkout;
use crate::target::Target;

/// Lock files that decide the compiled code: the binary's and the guests'.
pub(crate) const LOCK_FILES: [&str; 2] = ["Cargo.lock", "guests/Cargo.lock"];

/// A file and its bytes.
pub(crate) type Named<'a> = (&'a str, &'a [u8]);

/// The SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The statement about `subjects`, made from the checkout and its lock files. `binary` is the
/// origin of the binary: built with a profile, or given.
pub(crate) fn statement(
    checkout: &Checkout,
    target: &Target,
    binary: &str,
    locks: &[Named<'_>],
    subjects: &[Named<'_>],
) -> Value {
    let digests = |files: &[Named<'_>], key: &str| -> Vec<Value> {
        files.iter().map(|(name, bytes)| json!({key: name, "digest": {"sha256": sha256(bytes)}})).collect()
    };
    let mut inputs = vec![json!({
        "name": "vcr",
        "digest": {"gitCommit": checkout.commit},
        "annotations": {"modified": checkout.is_modified},
    })];
    inputs.extend(digests(locks, "name"));
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": digests(subjects, "name"),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:vcr:xtask-dist:v1",
                "externalParameters": {"target": target.to_string(), "features": ["full"], "binary": binary},
                "internalParameters": {"rustc": checkout.rustc, "version": checkout.version},
                "resolvedDependencies": inputs,
            },
            "runDetails": {"builder": {"id": "urn:vcr:xtask"}},
        },
    })
}
