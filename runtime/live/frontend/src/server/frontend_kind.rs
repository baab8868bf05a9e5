//! Which of vLLM's frontends the server is like.

/// A frontend of vLLM 0.33.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrontendKind {
    /// The API server in Python, which `vllm serve` starts.
    #[default]
    Python,
    /// The one in Rust, which it starts with `VLLM_USE_RUST_FRONTEND=1`.
    Rust,
}
