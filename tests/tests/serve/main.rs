//! `vcr serve`, over HTTP.

mod answers;
mod as_vllm;
mod config;
mod dialects;
mod ends;
mod errors;
mod faults;
mod operations;
mod reasoning;
mod stored;
mod structured;
mod texts;
mod tools;
