//! Builds guests into WebAssembly components.
//!
//! A Rust guest is compiled for `wasm32-unknown-unknown`, and `wit-component` wraps its core module into a component.
//! On most machines `rustup target add` installs the standard library for that target. Where it cannot, the library
//! is compiled from source (see [`Route`]), so that guests build wherever Rust does.
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
//! Python and JavaScript guests are built with componentize-py and componentize-js, which are installed into the
//! cache directory.
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
