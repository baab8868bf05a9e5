//! `vcr serve`, over HTTP.

mod answers;
mod config;
mod development;
mod dialects;
mod embeddings;
mod ends;
mod errors;
mod faults;
mod grpc;
mod limits;
mod lora;
mod multimodal;
mod operations;
mod per_request;
mod render;
mod tls;
mod traces;
