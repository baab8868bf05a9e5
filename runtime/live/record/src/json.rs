//! Converts protocol values to JSON.

use serde_json::{Map, Number, Value};
use vcr_wire::{AsJson, PoolingParams, SamplingParams};

/// Returns the sampling parameters that differ from their defaults. `with_tokens` decides whether prescribed output
/// tokens are included.
pub(crate) fn sampling(params: &SamplingParams, with_tokens: bool) -> Map<String, Value> {
    let mut bytes = Vec::new();
    params.encode(&mut bytes);
    let Ok(Value::Object(mut params)) = serde_json::to_value(AsJson::new(&bytes)) else { return Map::new() };
    if !with_tokens {
        params.remove("trace_decode_token_ids");
    }
    params.values_mut().for_each(shorten);
    params
}

/// Frontends store numbers such as 0.95 in 32 bits. Widened to 64 bits, they would show digits that the user did
/// not write.
fn shorten(value: &mut Value) {
    let Some(number) = value.as_f64().filter(|_| value.is_f64()) else { return };
    let short = number as f32;
    if f64::from(short) == number
        && let Ok(number) = short.to_string().parse()
    {
        *value = Number::from_f64(number).map_or(Value::Null, Value::Number);
    }
}

/// Returns the pooling parameters that differ from their defaults.
pub(crate) fn pooling(params: &PoolingParams) -> Map<String, Value> {
    let skip = params.skip_reading_prefix_cache;
    let all = [
        ("task", params.task.as_deref().map(Value::from)),
        ("dimensions", params.dimensions.map(Value::from)),
        ("use_activation", params.use_activation.map(Value::from)),
        ("step_tag_id", params.step_tag_id.map(Value::from)),
        ("returned_token_ids", params.returned_token_ids.clone().map(Value::from)),
        ("requires_token_ids", params.requires_token_ids.then_some(Value::Bool(true))),
        ("skip_reading_prefix_cache", skip.map(Value::from)),
        ("extra_kwargs", params.extra_kwargs.as_ref().and_then(|value| serde_json::to_value(value).ok())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_at_their_defaults_are_left_out() {
        let params = SamplingParams {
            temperature: f64::from(0.6_f32),
            top_p: 0.5,
            max_tokens: Some(7),
            seed: Some(5_u64.into()),
            ..SamplingParams::default()
        };
        assert_eq!(
            Value::Object(sampling(&params, false)),
            json!({"temperature": 0.6, "top_p": 0.5, "max_tokens": 7, "seed": 5})
        );
        assert!(sampling(&SamplingParams::default(), true).is_empty());
        let params = PoolingParams { task: Some("embed".to_owned()), ..PoolingParams::default() };
        assert_eq!(Value::Object(pooling(&params)), json!({"task": "embed"}));
    }
}
