//! Finds guests by reference: a path, or a digest in an OCI registry.
//!
//! A registry is asked once. What it gives is checked against the digest of the
//! reference and kept on disk under that digest, and checked again whenever it
//! is taken from there. So a run that names a digest gets the same component
//! everywhere, and needs no network after the first time.
//!
//! Owns the store on disk and the words of the distribution protocol; what a
//! component is, and whether it may run, is for others to say.

mod auth;
mod client;
mod error;
mod reference;
mod store;

pub use auth::DockerConfig;
pub use error::RegistryError;
pub use reference::{GuestReference, OciReference};
pub use store::{Found, Store};
