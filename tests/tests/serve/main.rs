//! `vcr serve`, over HTTP.

mod answers;
mod config;
mod dialects;
mod ends;
mod errors;
mod faults;
mod limits;
mod operations;
