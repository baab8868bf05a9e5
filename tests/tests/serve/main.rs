//! `vcr serve`, over HTTP.

mod answers;
mod config;
mod dialects;
mod ends;
mod errors;
mod faults;
mod limits;
mod grpc;
mod operations;
mod per_request;
mod tls;
mod traces;
