//! Builds a guest crate into a WebAssembly component.
//!
//! A guest is compiled for `wasm32-unknown-unknown` and its core module wrapped
//! into a component by `wit-component`. The standard library for that target is
//! one `rustup target add` away on most machines; where it cannot be had, the
//! library is compiled from source instead (see [`Route`]), so that guests build
//! wherever Rust does.
//!
//! ```no_run
//! use std::path::Path;
//! use vcr_guest_tools::build::{Options, build_workspace};
//!
//! let built = build_workspace(
//!     Path::new("guests"),
//!     Path::new("guests/dist"),
//!     &Options::from_env()?,
//!     &mut |event| eprintln!("{event}"),
//! )?;
//! # Ok::<(), vcr_guest_tools::build::BuildError>(())
//! ```
//!
//! Guests in Python and JavaScript are put into components by componentize-py and componentize-js
//! instead, which are installed into the cache directory.
//!
//! Nothing is installed outside rustup's own toolchain and the cache directory.

mod command;
mod component;
mod debian;
mod error;
mod find;
mod javascript;
mod naming;
mod options;
mod packages;
mod progress;
mod project;
mod python;
mod route;
mod run;
mod tool;
mod toolchain;

pub use error::{BuildError, ProjectProblem};
pub use options::Options;
pub use progress::{BuiltGuest, Progress};
pub use route::Route;
pub use run::{build, build_workspace, default_out_dir, is_one};

/// The target that guests are compiled for.
pub const TARGET: &str = "wasm32-unknown-unknown";
