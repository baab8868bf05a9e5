//! Tests of models and command lines, in one binary, because linking each file by itself takes longer.

mod drafters;
mod quantised;
mod recorded;
mod refused;
mod stages;
mod vllm_args_lines;
mod vllm_args_models;
mod vllm_args_recorded;
