//! Endpoints of operators: the server's state, its models, its engines.

pub(super) mod admin;
pub(super) mod development;
pub(super) mod lora;
pub(super) mod models;
pub(super) mod status;
