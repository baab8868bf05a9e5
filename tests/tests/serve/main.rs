//! `vcr serve`, over HTTP.

mod answers;
mod as_vllm;
mod chat;
mod embeddings;
mod ends;
mod engines;
mod errors;
mod faults;
mod frontends;
mod grpc;
mod llm_d;
mod names;
mod operators;
mod per_request;
mod render;
mod renderings;
mod texts;
mod vllm_flags;
