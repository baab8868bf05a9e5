//! `vcr serve`, over HTTP.

mod answers;
mod config;
mod ends;
mod errors;
mod faults;
mod operations;
