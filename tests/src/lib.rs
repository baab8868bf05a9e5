//! Shared by the black-box tests: the binary under test, folders to run it in, guests, sample data, and real vLLM
//! frontends.
//!
//! The tests use the program as its users do: they pass arguments and files, and check the exit code, the two
//! output streams and files.

mod binary;
mod certificates;
mod data;
mod file_circles;
mod folder;
mod frontend;
mod guests;
mod http;
mod node;
mod python;
mod running;
mod tables;
mod tokenizer;

pub use binary::{scratch_dir, vcr};
pub use certificates::{Authority, Certificate, self_signed};
pub use data::{Sums, sample, sample_data, sample_sums};
pub use file_circles::{FileCircle, file_circles};
pub use folder::{DEFAULT_FILES, Folder, Said};
pub use frontend::agents::{claude_code, codex};
pub use frontend::client::{Client, browser, client, ended};
pub use frontend::renderer::Renderer;
pub use frontend::{
    Answer, Events, FRONTENDS, Frontend, FrontendOptions, Streamed, free_port, free_ports, frontend_model, releases,
    vllm_rs,
};
pub(crate) use frontend::{fetched, fetched_by};
pub use guests::{
    built_guest, component, guest_tools, guests_target, hostile_guest, interface_of, json_tokens, shipped_guest,
    tried_guest, without_peaks,
};
pub use http::{Call, HttpAnswer, read_answer};
pub use node::{has_node, node_tests};
pub use python::{Program, PythonPackages, grpc_packages, python_packages};
pub use running::play::Play;
pub use running::record::{Record, capture};
pub use running::serve::{Reply, Serve};
pub use running::{Running, wait_until};
pub use tables::{check_file, check_rows, check_table};
pub use tokenizer::byte_tokenizer;
pub use vcr_skips::skip;

use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the tests lie in the repository")
}
