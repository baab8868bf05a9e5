//! Distributions of counts (from numbers) and of durations (from texts with units).

use rhai::{Dynamic, Engine, NativeCallContext};
use vcr_base::random::Distribution;

use crate::script::error::{Scripted, Thrown};
use crate::script::options::{ScriptDistribution, as_number, as_text, describe};
use vcr_base::units;

type Make = fn(f64, f64) -> Distribution;

const OF_TWO: &[(&str, Make)] = &[
    ("normal", |mean, std| Distribution::Normal { mean, std }),
    ("lognormal", |mean, std| Distribution::LogNormal { mean, std }),
    ("gamma", |mean, std| Distribution::Gamma { mean, std }),
    ("uniform", |min, max| Distribution::Uniform { min, max }),
];

pub(crate) fn register(engine: &mut Engine) {
    for &(name, make) in OF_TWO {
        engine.register_fn(
            name,
            move |call: NativeCallContext<'_>, first: Dynamic, second: Dynamic| -> Scripted<ScriptDistribution> {
                let made = both(name, &first, &second)
                    .map(|(first, second, is_time)| ScriptDistribution { distribution: make(first, second), is_time });
                made.map_err(|thrown| thrown.at(call.call_position()))
            },
        );
    }
    engine.register_fn("exponential", |call: NativeCallContext<'_>, mean: Dynamic| -> Scripted<ScriptDistribution> {
        let made = one("exponential", &mean)
            .map(|(mean, is_time)| ScriptDistribution { distribution: Distribution::Exponential { mean }, is_time });
        made.map_err(|thrown| thrown.at(call.call_position()))
    });
}

fn both(name: &str, first: &Dynamic, second: &Dynamic) -> Result<(f64, f64, bool), Thrown> {
    let (first, first_is_time) = one(name, first)?;
    let (second, second_is_time) = one(name, second)?;
    if first_is_time != second_is_time {
        return Err(Thrown::input(format!("`{name}` takes two durations or two numbers, not one of each")));
    }
    Ok((first, second, first_is_time))
}

/// Reads a number, or a duration in milliseconds. Returns whether it is a duration.
fn one(name: &str, value: &Dynamic) -> Result<(f64, bool), Thrown> {
    if let Some(number) = as_number(value) {
        return Ok((number, false));
    }
    let Some(text) = as_text(value) else {
        return Err(Thrown::input(format!("`{name}` takes numbers or durations, not {}", describe(value))));
    };
    match units::duration_ns(&text) {
        Ok(ns) => Ok((ns as f64 / 1e6, true)),
        Err(error) => Err(Thrown::input(format!("`{name}`: {error}"))),
    }
}
