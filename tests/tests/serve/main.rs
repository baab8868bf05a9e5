//! `vcr serve`, over HTTP.

mod answers;
mod config;
mod development;
mod dialects;
mod embeddings;
mod ends;
mod errors;
mod faults;
mod lora;
mod multimodal;
mod operations;
mod render;
