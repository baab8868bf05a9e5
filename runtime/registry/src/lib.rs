//! Finds guests by reference: a path, or a digest in an OCI registry.
//!
//! A registry is asked once. What it gives is checked against the digest of the
//! reference and kept on disk under that digest, and checked again whenever it
//! is taken from there. So a run that names a digest gets the same component
//! everywhere, and needs no network after the first time.
//!
//! Owns the store on disk and the words of the distribution protocol; what a
//! component is, and whether it may run, is for others to say.

#[cfg(not(feature = "oci"))]
mod absent;
#[cfg(feature = "oci")]
mod auth;
#[cfg(feature = "oci")]
mod client;
#[cfg(feature = "oci")]
mod digest;
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
