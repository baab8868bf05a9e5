//! The NIXL plane: KV pages moved by NVIDIA's transfer library.
//!
//! Peers find each other as vLLM's NIXL connectors do. The reader asks the owner's side channel for metadata
//! (`vcr-wire`), adds the owner's agent to its own, and reads pages by their addresses without the owner's
//! help. The owner learns from a notification that it may free the blocks. So a real vLLM may read from a vcr
//! engine, whose metadata equals the metadata of a worker with the same KV cache. vLLM has K and V of a layer
//! in one region ([`vcr_transfer::Regions::Together`]).
//!
//! The library is opened when the program runs ([`open_library`]); without it nothing here may be called.
//!
//! # Differences to a plane that has the owner's help
//!
//! * Blocks get their pattern before a reader can come, because the time of its arrival is unknown:
//!   while the prompt is computed, by a thread of its own, and the rest before its answer is sent.
//! * Who knows an address can read it: a hold, its end and its name are not checked by the owner. A block that was used
//!   otherwise in the meantime is found by the reader, whose comparison with the pattern fails.
//! * A cancelled read continues until NIXL is done; later transfers into its blocks wait for that.

mod agent;
mod filler;
mod layout;
mod library;
mod links;
mod plane;
mod shared;
mod symbols;
mod worker;

use std::path::Path;
use std::sync::Arc;

use vcr_transfer::PlaneFactory;
use vcr_wire::{NixlCompatibility, Protocol, VllmMinor};

pub use library::{LibraryError, open_library};
pub use plane::NixlPlane;

/// Settings of the plane, for all engines of a process.
#[derive(Clone, Debug)]
pub struct NixlSettings {
    /// Host of the side channel: its listening address, which peers are told.
    pub side_channel_host: String,
    /// Port of the side channel of the first engine; others count up from it.
    pub side_channel_port: u16,
    /// The version whose connector it is.
    pub version: VllmMinor,
    /// Settings that peers must have in common.
    pub compatibility: NixlCompatibility,
    /// The hash for peers, instead of the hash of `compatibility`.
    pub hash: Option<String>,
    /// Whether peers with another hash are refused.
    pub enforces_compatibility: bool,
}

impl NixlSettings {
    /// The compatibility hash of the connector.
    #[must_use]
    pub fn compatibility_hash(&self) -> String {
        self.hash.clone().unwrap_or_else(|| self.compatibility.hash(self.version.rules()))
    }
}

/// Opens the library and returns a factory of planes that use it.
///
/// # Errors
/// When the library is not there or cannot be used, with what to do.
pub fn planes(settings: NixlSettings, library: Option<&Path>) -> Result<PlaneFactory, LibraryError> {
    let path = open_library(library)?;
    tracing::info!(library = %path.display(), "KV moves through NIXL");
    let settings = Arc::new(settings);
    Ok(Arc::new(move |context| Ok(Box::new(NixlPlane::start(&settings, context)?))))
}
