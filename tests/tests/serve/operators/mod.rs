//! Options and routes for operators.

mod config;
mod development;
mod limits;
mod lora;
mod operations;
mod ports;
mod tls;
mod traces;
