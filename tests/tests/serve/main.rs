//! `vcr serve`, over HTTP.

mod answers;
mod as_vllm;
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
mod reasoning;
mod render;
mod stored;
mod structured;
mod texts;
mod tls;
mod tools;
mod traces;
