//! What operators set, change and look at.

mod config;
mod development;
mod limits;
mod lora;
mod operations;
mod tls;
mod traces;
