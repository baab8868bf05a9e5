//! The formats of traces. Each module passes its rows to the assembler.

pub(crate) mod applied_compute;
pub(crate) mod azure;
pub(crate) mod burstgpt;
pub(crate) mod csv;
pub(crate) mod dynamo;
pub(crate) mod mooncake;
pub(crate) mod qwen_bailian;
pub(crate) mod splitwise;
pub(crate) mod vidur;
pub(crate) mod weka;
