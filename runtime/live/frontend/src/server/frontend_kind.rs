//! vLLM's frontends that can be simulated.

/// A frontend of vLLM 0.33.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrontendKind {
    /// The Python API server, which `vllm serve` starts.
    #[default]
    Python,
    /// The Rust frontend, which `vllm serve` starts if `VLLM_USE_RUST_FRONTEND=1`.
    Rust,
}
