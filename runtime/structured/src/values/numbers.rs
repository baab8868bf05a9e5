use alloc::format;
use alloc::string::String;

use vcr_guest_sdk::Rng;

use crate::schema::Schema;

/// Distance of the bounds of a number where only one is given, or none.
const USUAL_RANGE: f64 = 1_000.0;

/// Beyond this, hundredths are no longer whole numbers.
const EXACT_MAX: f64 = 1e13;

/// Bounds where the schema has none.
type Usual = Option<(f64, f64)>;

/// A whole number within the bounds of `schema`.
pub(crate) fn integer(schema: &Schema, usual: Usual, rng: &mut Rng) -> Result<String, String> {
    let (low, high) = bounds(schema, usual);
    let value = multiple(schema, usual, 1.0, rng).ok_or_else(|| format!("there is no integer from {low} to {high}"))?;
    Ok(format!("{value}"))
}

/// A number with two decimals within the bounds of `schema`, or one of the
/// bounds where they are too close or too far for that.
pub(crate) fn number(schema: &Schema, usual: Usual, rng: &mut Rng) -> Result<String, String> {
    if let Some(hundredths) = multiple(schema, usual, 100.0, rng) {
        let sign = if hundredths < 0 { "-" } else { "" };
        let hundredths = hundredths.unsigned_abs();
        return Ok(format!("{sign}{}.{:02}", hundredths / 100, hundredths % 100));
    }
    let (low, high) = bounds(schema, usual);
    let bound = schema.minimum.or(schema.maximum).filter(|bound| (low..=high).contains(bound));
    bound.map(|bound| format!("{bound}")).ok_or_else(|| format!("there is no number from {low} to {high}"))
}

/// A random number within the bounds, times `scale`, that is whole.
fn multiple(schema: &Schema, usual: Usual, scale: f64, rng: &mut Rng) -> Option<i64> {
    let (low, high) = bounds(schema, usual);
    if !(low.abs() <= EXACT_MAX && high.abs() <= EXACT_MAX) {
        return None;
    }
    let mut first = ceil(low * scale);
    let mut last = -ceil(-high * scale);
    if schema.exclusive_minimum.is_some_and(|bound| first as f64 <= bound * scale) {
        first += 1;
    }
    if schema.exclusive_maximum.is_some_and(|bound| last as f64 >= bound * scale) {
        last -= 1;
    }
    let range = u64::try_from(last.checked_sub(first)?).ok()?;
    // Far below 2^64, so that the remainder favours no number noticeably.
    Some(first + (rng.next_u64() % (range + 1)).cast_signed())
}

/// The least and the greatest number allowed, whether or not they are included.
fn bounds(schema: &Schema, usual: Usual) -> (f64, f64) {
    let low = greatest(schema.minimum, schema.exclusive_minimum);
    let high = greatest(schema.maximum.map(|bound| -bound), schema.exclusive_maximum.map(|bound| -bound));
    match (low, high.map(|bound| -bound)) {
        (Some(low), Some(high)) => (low, high),
        (Some(low), None) => {
            (low, usual.map(|(_, high)| high).filter(|high| *high >= low).unwrap_or(low + USUAL_RANGE))
        }
        (None, Some(high)) => {
            (usual.map(|(low, _)| low).filter(|low| *low <= high).unwrap_or(high - USUAL_RANGE), high)
        }
        (None, None) => usual.unwrap_or((0.0, USUAL_RANGE)),
    }
}

fn greatest(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

/// The least whole number that is not below `value`, which is in the range of
/// them. `f64::ceil` is not available without std.
fn ceil(value: f64) -> i64 {
    let whole = value as i64;
    if (whole as f64) < value { whole + 1 } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(text: &str) -> Schema {
        serde_json::from_str(text).expect("a schema")
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        for (bounds, low, high) in [
            ("{}", 0.0, 1000.0),
            (r#"{"minimum": 5}"#, 5.0, 1005.0),
            (r#"{"maximum": -5}"#, -1005.0, -5.0),
            (r#"{"minimum": -2, "maximum": 2}"#, -2.0, 2.0),
            (r#"{"exclusiveMinimum": 3, "exclusiveMaximum": 5}"#, 3.01, 4.99),
            (r#"{"minimum": 1.5, "maximum": 2.5}"#, 1.5, 2.5),
        ] {
            let schema = schema(bounds);
            for seed in 0..200 {
                for text in
                    [integer(&schema, None, &mut Rng::new(seed, 0)), number(&schema, None, &mut Rng::new(seed, 0))]
                {
                    let text = text.expect(bounds);
                    let value: f64 = text.parse().expect("a number");
                    assert!((low..=high).contains(&value), "{text} for {bounds}");
                }
            }
        }
        let exact = schema(r#"{"exclusiveMinimum": 3, "exclusiveMaximum": 5}"#);
        assert_eq!(integer(&exact, None, &mut Rng::new(1, 0)), Ok("4".into()));
    }

    #[test]
    fn bounds_too_close_or_too_far_are_taken_themselves() {
        let mut rng = Rng::new(1, 0);
        let close = schema(r#"{"minimum": 0.001, "maximum": 0.002}"#);
        assert_eq!(number(&close, None, &mut rng), Ok("0.001".into()));
        assert_eq!(integer(&close, None, &mut rng), Err("there is no integer from 0.001 to 0.002".into()));
        let far = number(&schema(r#"{"maximum": 1e30}"#), None, &mut rng).expect("the maximum");
        assert_eq!(far.parse(), Ok(1e30));
        let none = schema(r#"{"minimum": 2, "maximum": 1}"#);
        assert_eq!(number(&none, None, &mut rng), Err("there is no number from 2 to 1".into()));
    }

    #[test]
    fn usual_bounds_stand_where_the_schema_has_none() {
        let usual = Some((3.0, 4.0));
        let drawn = |text: &str| integer(&schema(text), usual, &mut Rng::new(5, 0)).expect("a number");
        assert!(["3", "4"].contains(&drawn("{}").as_str()));
        assert_eq!(drawn(r#"{"minimum": 4}"#), "4");
        assert_eq!(drawn(r#"{"maximum": 3}"#), "3");
        assert_eq!(drawn(r#"{"minimum": 9, "maximum": 9}"#), "9");
        assert!(drawn(r#"{"minimum": 9}"#).parse::<u32>().is_ok_and(|number| number >= 9));
    }
}
