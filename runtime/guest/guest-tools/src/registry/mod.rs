//! Finds guests by reference: a path, or a digest in an OCI registry.
//!
//! A download is checked against the digest of its reference and stored on disk under that digest. It is checked
//! again at each use. A run that names a digest gets the same component everywhere, and needs the network only once.
//!
//! This module has the store and the distribution protocol; `vcr-guest` reads the components.

#[cfg(not(feature = "oci"))]
mod absent;
#[cfg(feature = "oci")]
mod auth;
#[cfg(feature = "oci")]
mod client;
#[cfg(feature = "oci")]
mod digest;
#[cfg(feature = "oci")]
mod download;
mod error;
#[cfg(feature = "oci")]
mod oci_reference;
mod reference;
#[cfg(feature = "oci")]
mod store;

#[cfg(not(feature = "oci"))]
pub use absent::{DockerConfig, Found, OciReference, Store};
#[cfg(feature = "oci")]
pub use auth::DockerConfig;
pub use error::RegistryError;
#[cfg(feature = "oci")]
pub use oci_reference::OciReference;
pub use reference::GuestReference;
#[cfg(feature = "oci")]
pub use store::{Found, Store};
