//! The option `overheads`: time that requests spend outside of steps.

use vcr_cluster::{Overheads, PERMILLE};

use crate::script::options::Options;

/// Reads the option `overheads`. Missing keys are zero.
pub(crate) fn option(options: &mut Options<'_>) -> Option<Overheads> {
    options.nested("overheads", "#{ arrival: \"8ms\", output: \"1ms\" }", |options| Overheads {
        arrival_ns: options.duration_ns("arrival").unwrap_or(0),
        arrival_per_prompt_token_ps: options.duration_ps("per_prompt_token").unwrap_or(0),
        first_token_ns: options.duration_ns("first_token").unwrap_or(0),
        output_ns: options.duration_ns("output").unwrap_or(0),
        prefill_launch_ns: options.duration_ns("prefill_launch").unwrap_or(0),
        large_launch_ns: options.duration_ns("large_launch").unwrap_or(0),
        launch_per_request_ns: options.duration_ns("launch_per_request").unwrap_or(0),
        launch_spread_permille: launch_spread(options),
    })
}

/// Reads the option `launch_spread`, in thousandths.
fn launch_spread(options: &mut Options<'_>) -> u32 {
    let Some(spread) = options.f64("launch_spread") else { return 0 };
    if !(0.0..=1.0).contains(&spread) {
        options.problem("launch_spread", format!("is {spread}: expected a share from 0 to 1"));
        return 0;
    }
    (spread * f64::from(PERMILLE)).round() as u32
}
