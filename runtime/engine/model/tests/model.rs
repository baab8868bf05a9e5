//! Tests of models and command lines. They are one binary, because linking one binary per file is slower.

mod drafters;
mod quantised;
mod recorded;
mod refused;
mod stages;
mod vllm_args_lines;
mod vllm_args_models;
mod vllm_args_recorded;
