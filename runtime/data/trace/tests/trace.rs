//! Tests of readers and writers in one binary, because linking each file separately takes longer.

mod arbitrary_bytes;
mod captures;
#[cfg(feature = "formats")]
mod import_common;
#[cfg(feature = "formats")]
mod import_importers;
#[cfg(feature = "formats")]
mod import_samples;
mod open;
mod samples;
mod schema;
mod vllm_vcr;
mod workload;
