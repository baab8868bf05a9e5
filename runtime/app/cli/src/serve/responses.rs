//! Options of the Responses API.

use clap::Args;
use clap::builder::FalseyValueParser;

use super::operations::size;

#[derive(Debug, Args)]
#[command(next_help_heading = "Responses API")]
pub(crate) struct ResponsesArgs {
    /// Store responses, so that requests can continue, fetch and delete them.
    #[arg(long, env = "VLLM_ENABLE_RESPONSES_API_STORE", value_parser = FalseyValueParser::new())]
    store_responses: bool,

    /// Memory for stored responses; the oldest ones are removed.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    stored_responses_memory: usize,
}

impl ResponsesArgs {
    /// Memory for stored responses; 0 disables storage.
    pub(crate) fn stored_bytes(&self) -> usize {
        if self.store_responses { self.stored_responses_memory } else { 0 }
    }
}
