//! Reads latency models given by name.

use std::path::Path;
use std::sync::Arc;

use vcr_base::random::Distribution;
use vcr_core::latency::{LatencyError, LatencyModel};
use vcr_latency::{Fixed, FixedInput, InvalidConfig, Knobs, KnobsInput, PerRequest};
use vcr_live::LatencyFactory;
use vcr_scenario::expression;

use super::guests::LiveGuests;
use super::timing::TimingArgs;
use super::unusable::Unusable;
use crate::values::is_guest;

/// Makes the latency model `text`, given for `place`, and its display name. Only guests may have a fallback.
pub(crate) fn named_latency(
    guests: &LiveGuests,
    place: &str,
    text: &str,
    guest_config: Option<&str>,
    fallback: Option<LatencyFactory>,
) -> Result<(LatencyFactory, String), Unusable> {
    if is_guest(text) {
        return guests.latency(text, guest_config.unwrap_or("{}"), fallback);
    }
    if fallback.is_some() {
        return Err(Unusable::fallback_of_native(place, "--latency-fallback", "model"));
    }
    if guest_config.is_some() {
        return Err(Unusable::config_of_native(place, "model"));
    }
    let factory = expression::latency(place, text, Path::new(""), Some(guests.wall_time()))?;
    Ok((factory, text.to_owned()))
}

/// Number of requests from which the load factor applies fully, whatever `--max-num-seqs` is; as in `knobs(...)`.
const FULL_LOAD_REQUESTS: u64 = 256;

/// Makes the latency model of the timing options, and its expression as in scenarios; by default steps take no time.
pub(crate) fn single_times(args: &TimingArgs) -> Result<(LatencyFactory, String), Unusable> {
    let unusable = |error: InvalidConfig| Unusable::new(format!("options of times: {error}"));
    let are_of_steps = args.are_of_steps();
    let [first_ns, first_std_ns, later_ns, later_std_ns] = match are_of_steps {
        true => [
            args.prefill_step_time,
            args.prefill_step_time_std_dev,
            args.decode_step_time,
            args.decode_step_time_std_dev,
        ],
        false => [
            args.time_to_first_token.or(args.prefill_overhead),
            args.time_to_first_token_std_dev.or(args.prefill_time_std_dev),
            args.inter_token_latency,
            args.inter_token_latency_std_dev,
        ],
    };
    if first_ns.is_none() && later_ns.is_none() && args.prefill_time_per_token.is_none() {
        let model = Fixed::new(FixedInput::Step { step_ns: 0 }).map_err(unusable)?;
        return Ok((Arc::new(move |_context| Ok(Box::new(model))), "fixed(#{ step: \"0ns\" })".to_owned()));
    }
    let (ttft, ttft_text) = spread(first_ns.unwrap_or(0), first_std_ns);
    let (itl, itl_text) = spread(later_ns.unwrap_or(0), later_std_ns);
    let per_token_ns = args.prefill_time_per_token.unwrap_or(0);
    let input = KnobsInput {
        ttft,
        itl,
        prefill_ms_per_token: per_token_ns as f64 / 1e6,
        encoder_ms_per_token: 0.0,
        full_load_factor: args.time_factor_under_load.unwrap_or(1.0),
        max_num_seqs: FULL_LOAD_REQUESTS,
        seed: 0,
    };
    let (function, factory) = if are_of_steps {
        Knobs::new(input).map_err(unusable)?;
        ("knobs", seeded("knobs", input, Knobs::new))
    } else {
        PerRequest::new(input).map_err(unusable)?;
        ("per_request", seeded("per_request", input, PerRequest::new))
    };
    let name = format!(
        "{function}(#{{ ttft: {ttft_text}, itl: {itl_text}, prefill_per_token: \"{per_token_ns}ns\", full_load_factor: {:?} }})",
        input.full_load_factor
    );
    Ok((factory, name))
}

/// A factory of models with this input, each with its own seed.
fn seeded<M: LatencyModel + 'static>(
    name: &'static str,
    input: KnobsInput,
    make: fn(KnobsInput) -> Result<M, InvalidConfig>,
) -> LatencyFactory {
    Arc::new(move |context| {
        let model = make(KnobsInput { seed: context.seed, ..input });
        let model = model.map_err(|error| LatencyError { model: name.to_owned(), reason: error.to_string() })?;
        Ok(Box::new(model))
    })
}

/// A distribution with this mean and standard deviation, and its expression in milliseconds.
fn spread(mean_ns: u64, std_ns: Option<u64>) -> (Distribution, String) {
    let ms = |ns: u64| ns as f64 / 1e6;
    match std_ns.filter(|&std_ns| std_ns > 0) {
        Some(std_ns) => (
            Distribution::Normal { mean: ms(mean_ns), std: ms(std_ns) },
            format!("normal(\"{mean_ns}ns\", \"{std_ns}ns\")"),
        ),
        None => (Distribution::Constant { value: ms(mean_ns) }, format!("\"{mean_ns}ns\"")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use vcr_core::PluginContext;
    use vcr_core::latency::{StepBatch, StepShape};
    use vcr_core::request_times::NextToken;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        timing: TimingArgs,
    }

    fn made(args: &str) -> Result<(LatencyFactory, String), Unusable> {
        let line = Line::try_parse_from(["play"].into_iter().chain(args.split_whitespace())).expect("it is valid");
        single_times(&line.timing)
    }

    fn durations_ns(factory: &LatencyFactory) -> Vec<u64> {
        let mut model = factory(&PluginContext::of_seed(7)).expect("it is valid");
        let prefill =
            StepShape { prefill_requests: 1, prefill_tokens: 90, prefill_completions: 1, ..Default::default() };
        let decode = StepShape { decode_requests: 40, ..Default::default() };
        let shapes = [prefill, decode, decode, prefill];
        let mut durations_ns = Vec::new();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
        model.price(&batch, &mut durations_ns).expect("it is priced");
        durations_ns
    }

    /// The control plane shows the expression and must be able to parse it.
    #[test]
    fn the_name_of_a_model_is_its_expression() {
        for args in [
            "",
            "--decode-step-time 10ms",
            "--prefill-step-time 200ms --prefill-step-time-std-dev 40ms --decode-step-time 10ms",
            "--prefill-step-time 20ms --prefill-step-time-std-dev 3ms --prefill-time-per-token 55us --decode-step-time 9ms \
             --decode-step-time-std-dev 1ms --time-factor-under-load 2.5",
        ] {
            let (factory, name) = made(args).expect("it is valid");
            let parsed = expression::latency("--latency", &name, Path::new(""), None).expect("it is an expression");
            assert_eq!(durations_ns(&factory), durations_ns(&parsed), "{args}: {name}");
        }
    }

    #[test]
    fn times_of_requests_have_an_expression_too() {
        let args = "--time-to-first-token 200ms --inter-token-latency 10ms \
                    --inter-token-latency-std-dev 2ms --time-factor-under-load 2.0";
        let (factory, name) = made(args).expect("it is valid");
        let parsed = expression::latency("--latency", &name, Path::new(""), None).expect("it is an expression");
        let later_ns = |factory: &LatencyFactory| {
            let times = factory(&PluginContext::of_seed(7)).expect("it is valid").request_times();
            let times = times.expect("it has times of requests");
            let token = |position| NextToken { request: 3, position, prefill_tokens: None, running_requests: 9 };
            [10, 11].map(|position| times.until_next_ns(&token(position)))
        };
        assert!(name.starts_with("per_request(#{"), "{name}");
        assert_eq!(later_ns(&factory), later_ns(&parsed));
    }

    #[test]
    fn times_are_those_of_requests_unless_they_are_named_steps() {
        for (args, function) in [
            ("--inter-token-latency 10ms", "per_request(#{"),
            ("--prefill-overhead 10ms --prefill-time-per-token 1us", "per_request(#{"),
            ("--prefill-time-per-token 1us", "per_request(#{"),
            ("--decode-step-time 10ms", "knobs(#{"),
            ("--prefill-step-time 10ms --prefill-time-per-token 1us", "knobs(#{"),
        ] {
            let (_, name) = made(args).expect("it is valid");
            assert!(name.starts_with(function), "{args}: {name}");
        }
        let mixed = ["play", "--decode-step-time", "1ms", "--time-to-first-token", "1ms"];
        let error = Line::try_parse_from(mixed).err().expect("one or the other").to_string();
        assert!(error.contains("cannot be used with"), "{error}");
    }

    #[test]
    fn times_that_no_model_has_are_refused() {
        let error = made("--inter-token-latency 10ms --time-factor-under-load 0.5").err().expect("it is wrong");
        assert!(
            error.message.contains("invalid `full_load_factor`: expected at least 1, got 0.5"),
            "{}",
            error.message
        );
    }
}
