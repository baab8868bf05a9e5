//! The files of each tool. Each module converts them to lines of a capture.

pub(crate) mod agentic;
pub(crate) mod aiperf;
pub(crate) mod bench;
pub(crate) mod dataset;
pub(crate) mod dynamo;
pub(crate) mod guidellm;
pub(crate) mod inference_perf;
pub(crate) mod llmservingsim;
pub(crate) mod otel;
pub(crate) mod own;
pub(crate) mod requests;
pub(crate) mod workload;
