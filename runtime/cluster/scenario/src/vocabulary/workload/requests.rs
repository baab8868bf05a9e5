//! Properties of the requests of synthetic workloads: lengths, turns, documents, adapters.

use std::sync::Arc;

use rhai::{Array, Engine};
use vcr_base::random::{Distribution, Weights};
use vcr_cluster::{Adapters, Conversations, Documents, Histogram, Lengths, Media, RequestClass, RequestMix};

use crate::script::options::{Options, as_number, describe};
use crate::vocabulary::workload::clients::slo;
use crate::vocabulary::workload::{elements, with_value};

/// Maximum number of items drawn by popularity. A larger number is probably mistyped.
const MAX_POPULATION: u32 = 10_000_000;
/// Maximum skew of a popularity distribution.
const MAX_SKEW: f64 = 100.0;

pub(super) fn register(engine: &mut Engine) {
    with_value(engine, "histogram", |ranges: &Array| {
        let ranges = elements(ranges, |range| {
            let expected = || format!("expected [length, count] or [from, to, count], found {}", describe(range));
            let numbers = range.clone().try_cast::<Array>().ok_or_else(expected)?;
            let numbers: Vec<f64> = numbers.iter().map(as_number).collect::<Option<_>>().ok_or_else(expected)?;
            let length = |number: f64| {
                let fits = number.fract() == 0.0 && (1.0..=1e7).contains(&number);
                fits.then_some(number as u32).ok_or_else(|| format!("invalid length {number}: expected 1 to 10000000"))
            };
            match numbers[..] {
                [at, count] => Ok((length(at)?, length(at)?, count)),
                [from, to, count] => Ok((length(from)?, length(to)?, count)),
                _ => Err(expected()),
            }
        })?;
        Histogram::new(&ranges).map(Arc::new)
    });
}

pub(super) fn classes(name: &str, options: &mut Options<'_>) -> Vec<RequestClass> {
    if !options.has("classes") {
        return vec![class(options)];
    }
    let example = "maps such as #{ weight: 2, prompt_tokens: 512, output_tokens: 64 }";
    let classes = options.each("classes", example, |index, one| {
        let class_name = one.name("name").unwrap_or_else(|| format!("{name} {}", index + 1));
        let weight = one.f64("weight").unwrap_or(1.0);
        let priority = one.i32("priority").unwrap_or(0);
        let slo = slo(&class_name, one);
        RequestClass { weight, priority, slo, ..class(one) }
    });
    if classes.as_ref().is_some_and(Vec::is_empty) {
        options.problem("classes", "`classes` needs at least one class of requests");
    }
    classes.unwrap_or_default()
}

fn class(options: &mut Options<'_>) -> RequestClass {
    RequestClass { weight: 1.0, mix: mix(options), priority: 0, adapters: adapters(options), slo: None }
}

fn mix(options: &mut Options<'_>) -> RequestMix {
    let one = Distribution::Constant { value: 1.0 };
    let conversations = options.made::<Arc<Conversations>>("dataset", "dataset(#{ ... })");
    if conversations.is_some() {
        for name in ["prompt_tokens", "output_tokens", "turns"] {
            options.refuse(name, "the data set determines the lengths of prompts and answers, and the number of turns");
        }
    }
    let [prompt_tokens, output_tokens] = ["prompt_tokens", "output_tokens"].map(|name| at_least_1(name, options));
    let turns = options.counts("turns").unwrap_or(one);
    if let Distribution::Constant { value } = turns
        && value < 1.0
    {
        options.problem("turns", format!("invalid `turns` {value}: expected at least 1"));
    }
    if conversations.is_none() {
        options.required::<()>("prompt_tokens", prompt_tokens.as_ref().map(|_| ()));
        options.required::<()>("output_tokens", output_tokens.as_ref().map(|_| ()));
    }
    RequestMix {
        shared_prefix_tokens: options.u32("shared_prefix_tokens").unwrap_or(0),
        prefix_groups: options.u32("prefix_groups").unwrap_or(1),
        turns,
        think_time_ms: options.durations_ms("think_time").unwrap_or(Distribution::Constant { value: 0.0 }),
        documents: documents(options),
        media: options.nested("images", "#{ count: 2, tokens: 1024 }", |images| {
            let tokens_per_item = images.u32("tokens");
            Media {
                items: images.counts("count").unwrap_or(one),
                tokens_per_item: images.required("tokens", tokens_per_item),
                distinct: images.u32("distinct"),
                in_prompt: images.boolean("in_prompt").unwrap_or(true),
            }
        }),
        stop_after: options.lengths("stop_after"),
        conversations,
        ..RequestMix::new(prompt_tokens.unwrap_or(Lengths::Drawn(one)), output_tokens.unwrap_or(Lengths::Drawn(one)))
    }
}

/// Reads token lengths. A constant length must be at least 1; shorter draws count as 1.
pub(super) fn at_least_1(name: &'static str, options: &mut Options<'_>) -> Option<Lengths> {
    let lengths = options.lengths(name);
    if let Some(Lengths::Drawn(Distribution::Constant { value })) = lengths
        && value < 1.0
    {
        options.problem(name, format!("invalid `{name}` {value}: expected at least 1"));
    }
    lengths
}

fn documents(options: &mut Options<'_>) -> Option<Documents> {
    options.nested("documents", "#{ count: 1000, tokens: 800, per_question: 3 }", |documents| {
        let tokens = documents.lengths("tokens");
        documents.required::<()>("tokens", tokens.as_ref().map(|_| ()));
        let one = Distribution::Constant { value: 1.0 };
        Documents {
            popularity: popularity(documents),
            tokens: tokens.unwrap_or(Lengths::Drawn(one)),
            per_question: documents.counts("per_question").unwrap_or(one),
        }
    })
}

/// Reads `adapters: #{ count: 16, skew: 1.0 }`, or `adapter: 3` for the adapter with this number.
fn adapters(options: &mut Options<'_>) -> Option<Adapters> {
    let one = options.u32("adapter").map(|first| Adapters { first, popularity: Weights::zipf(1, 0.0) });
    let several = options.nested("adapters", "#{ count: 16, skew: 1.0 }", |adapters| Adapters {
        first: adapters.u32("first").unwrap_or(0),
        popularity: popularity(adapters),
    });
    if one.is_some() && several.is_some() {
        options.problem("adapter", "`adapter` and `adapters` both list the adapters; give one of them");
    }
    one.or(several)
}

/// Reads a popularity distribution of `count` items. Item `k` has the weight `1 / k^skew`.
fn popularity(options: &mut Options<'_>) -> Weights {
    let count = options.u32("count");
    let count = options.required("count", count);
    if !(1..=MAX_POPULATION).contains(&count) {
        options.problem("count", format!("invalid `count`: expected 1 to {MAX_POPULATION}"));
    }
    let skew = options.f64("skew").unwrap_or(0.0);
    if !(0.0..=MAX_SKEW).contains(&skew) {
        options.problem("skew", format!("invalid `skew`: expected 0 to {MAX_SKEW}"));
    }
    Weights::zipf(count.min(MAX_POPULATION), skew.clamp(0.0, MAX_SKEW))
}
