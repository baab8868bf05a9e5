//! The NIXL plane, in which NVIDIA's transfer library moves KV pages.
//!
//! Peers find each other like vLLM's NIXL connectors. The reader asks the owner's side channel for metadata
//! (`vcr-wire`), adds the owner's agent to its own agent, and reads pages by their addresses without the owner's
//! help. The owner learns from a notification that it may free the blocks. So a real vLLM can read from a vcr
//! engine, whose metadata equals the metadata of a worker with the same KV cache. vLLM has K and V of a layer in
//! one region ([`vcr_transfer::Regions::Together`]).
//!
//! The library is opened at run time by [`open_library`], which must succeed before anything else here is called.
//!
//! # Differences from a plane with the owner's help
//!
//! * Blocks get their pattern before a reader can come, because the time of its arrival is unknown. A separate
//!   thread writes the pattern while the prompt is computed, and the rest before the prompt's answer is sent.
//! * Whoever knows an address can read it: the owner checks neither the hold, nor its end, nor its ID. If a block
//!   was reused in the meantime, the reader notices, because its comparison with the pattern fails.
//! * A cancelled read continues until NIXL is done. Later transfers into its blocks wait for that.

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
    /// Host of the side channel, which is listened at and sent to peers.
    pub side_channel_host: String,
    /// Port of the side channel of rank 0; an engine adds its rank.
    pub side_channel_port: u16,
    /// The vLLM version whose connector is imitated.
    pub version: VllmMinor,
    /// Settings that must be equal at peers.
    pub compatibility: NixlCompatibility,
    /// The hash to send to peers, instead of the hash of `compatibility`.
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
/// The library is missing or cannot be used. The error says what to do.
pub fn planes(settings: NixlSettings, library: Option<&Path>) -> Result<PlaneFactory, LibraryError> {
    let path = open_library(library)?;
    tracing::info!(library = %path.display(), "KV moves through NIXL");
    let settings = Arc::new(settings);
    Ok(Arc::new(move |context| Ok(Box::new(NixlPlane::start(&settings, context)?))))
}
