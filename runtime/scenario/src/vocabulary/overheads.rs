//! The option `overheads`: time that requests spend outside of steps.

use vcr_cluster::Overheads;

use crate::script::options::Options;

/// The option `overheads`; what its map leaves out is zero.
pub(crate) fn option(options: &mut Options<'_>) -> Option<Overheads> {
    options.nested("overheads", "#{ arrival: \"8ms\", output: \"1ms\" }", |options| Overheads {
        arrival_ns: options.duration_ns("arrival").unwrap_or(0),
        arrival_per_prompt_token_ps: options.duration_ps("per_prompt_token").unwrap_or(0),
        first_token_ns: options.duration_ns("first_token").unwrap_or(0),
        output_ns: options.duration_ns("output").unwrap_or(0),
        prefill_launch_ns: options.duration_ns("prefill_launch").unwrap_or(0),
        large_launch_ns: options.duration_ns("large_launch").unwrap_or(0),
    })
}
