//! vLLM's hashes of KV blocks, as KV events contain them.
//!
//! A router that follows the KV events of real engines computes these hashes from the tokens of a prompt, so the
//! hashes must equal vLLM's. [`BlockHasher`] writes the pickle or CBOR that CPython writes for
//! `(parent, tokens, extra keys)`, and hashes it with the same function. [`EngineHashes`] maps an engine's faster
//! block ids to these hashes while the blocks are cached.
//!
//! The rules are those of vLLM 0.27 to 0.33 (`vllm/v1/core/kv_cache_utils.py`, `vllm/utils/hashing.py`) under CPython
//! 3.11; 3.10 to 3.13 pickle identically.
//!
//! With EAGLE or MTP, hashes of 0.33 also cover tokens after their block ([`BlockHasher::hash_block_ahead`]). If a KV
//! cache group has larger blocks than the hashed ones, its block has the hash of the last hashed block inside it.
//!
//! Not reproduced:
//!
//! * An engine in the process of its frontend (`VLLM_ENABLE_V1_MULTIPROCESSING=0`). Pickle writes a repeated object
//!   as a reference, and there more strings may be the same object. [`ExtraKey`] lists the shared strings.
//! * A `PYTHONHASHSEED` that is not UTF-8.
//!
//! Two blocks of a prompt, as published by an engine of vLLM 0.33 started with `PYTHONHASHSEED=0` and
//! `--prefix-caching-hash-algo sha256_cbor`:
//!
//! ```
//! use vcr_base::block_hash::{BlockHasher, HashAlgorithm, HashRules, Seed};
//!
//! let rules = HashRules::of_release(0, 33).expect("a known release");
//! let mut hasher = BlockHasher::new(HashAlgorithm::Sha256Cbor, rules, Seed::PythonHashSeed("0"));
//! let tokens: Vec<u32> = (0..32).collect();
//!
//! let first = hasher.hash_block(None, &tokens[..16], &[]);
//! let second = hasher.hash_block(Some(&first), &tokens[16..], &[]);
//! assert_ne!(first.low_u64(), second.low_u64());
//! // The same tokens behind another block are another block.
//! assert_ne!(hasher.hash_block(None, &tokens[16..], &[]), second);
//! ```

mod algorithm;
mod cbor;
mod digest;
mod encode;
mod engine_hashes;
mod extra_key;
mod hasher;
mod pickle;
mod rules;

pub use algorithm::{HashAlgorithm, UnknownAlgorithm};
pub use digest::Digest;
pub use engine_hashes::{EngineHashes, EngineHashesError};
pub use extra_key::ExtraKey;
pub use hasher::{BlockHasher, Seed};
pub use rules::HashRules;
