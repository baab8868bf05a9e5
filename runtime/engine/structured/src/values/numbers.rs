//! Random numbers within the bounds of schemas.

use alloc::format;
use alloc::string::String;
use core::fmt;

use vcr_guest_sdk::Rng;

use crate::node::Node;

/// Default width of the range of a number if one or both bounds are missing.
const USUAL_RANGE: i128 = 1_000;

/// Bounds beyond this are taken as the limits of a type, such as 64-bit integers.
const FAR: f64 = 1e13;

/// Whole numbers beyond this are not distinguished.
const WHOLE_MAX: i128 = 1 << 100;

type Usual = Option<(f64, f64)>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    low: Option<Bound>,
    high: Option<Bound>,
    /// The number must be a multiple of this.
    step: Option<Decimal>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    value: f64,
    /// The exact value, if it is a whole number.
    whole: Option<i128>,
    is_excluded: bool,
}

/// A positive number: `digits` divided by ten to the power of `places`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decimal {
    digits: i128,
    places: u32,
}

impl Bound {
    fn read(node: &Node, keywords: [&str; 2]) -> Option<(Self, Option<Self>)> {
        let [bound, excluded] = keywords;
        let inner = Self::of(node.get(bound), matches!(node.get(excluded), Some(Node::Bool(true))));
        let outer = Self::of(node.get(excluded), true);
        inner.map(|inner| (inner, outer)).or(outer.map(|outer| (outer, None)))
    }

    fn of(given: Option<&Node>, is_excluded: bool) -> Option<Self> {
        let Some(Node::Number(text)) = given else { return None };
        let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
        let whole = text.parse().ok().or_else(|| (value as i128 as f64 == value).then_some(value as i128));
        let whole = whole.filter(|whole: &i128| whole.unsigned_abs() < WHOLE_MAX.unsigned_abs());
        Some(Self { value, whole, is_excluded })
    }

    /// The tighter of two bounds: the larger one if `is_greater`, otherwise the smaller one.
    fn tighter(self, other: Self, is_greater: bool) -> Self {
        let is_tighter = if is_greater { other.value > self.value } else { other.value < self.value };
        let is_same = other.whole == self.whole && other.value == self.value;
        if is_tighter || is_same && other.is_excluded { other } else { self }
    }
}

fn tightest(one: Option<Bound>, other: Option<Bound>, is_greater: bool) -> Option<Bound> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.tighter(other, is_greater)),
        (one, other) => one.or(other),
    }
}

impl Decimal {
    fn read(node: &Node) -> Option<Self> {
        let Node::Number(text) = node else { return None };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
        let mut digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let mut places = 0;
        match u32::try_from(exponent) {
            Ok(more) => digits = digits.checked_mul(10_i128.checked_pow(more)?)?,
            Err(_) => places = exponent.unsigned_abs(),
        }
        while places > 0 && digits % 10 == 0 {
            (digits, places) = (digits / 10, places - 1);
        }
        (digits > 0 && digits < 1 << 62 && places <= 18).then_some(Self { digits, places })
    }

    /// The smallest whole number that is a multiple of this number.
    fn whole(self) -> i128 {
        let (mut one, mut other) = (self.digits, 10_i128.pow(self.places));
        while other != 0 {
            (one, other) = (other, one % other);
        }
        self.digits / one
    }

    fn value(self) -> f64 {
        self.digits as f64 / ten_to(self.places)
    }

    /// `count` times this number, as text.
    fn times(self, count: i128) -> String {
        let product = self.digits.saturating_mul(count);
        let scale = 10_u128.pow(self.places);
        let (sign, product) = (if product < 0 { "-" } else { "" }, product.unsigned_abs());
        match self.places {
            0 => format!("{sign}{product}"),
            places => format!("{sign}{}.{:0>width$}", product / scale, product % scale, width = places as usize),
        }
    }
}

fn ten_to(power: u32) -> f64 {
    10_u128.pow(power.min(38)) as f64
}

impl Range {
    pub(crate) fn read(node: &Node) -> Self {
        let bounds = |keywords, is_greater| {
            let (bound, other) = Bound::read(node, keywords)?;
            tightest(Some(bound), other, is_greater)
        };
        Self {
            low: bounds(["minimum", "exclusiveMinimum"], true),
            high: bounds(["maximum", "exclusiveMaximum"], false),
            step: node.get("multipleOf").and_then(Decimal::read),
        }
    }

    pub(crate) fn binds(&self) -> bool {
        self.low.is_some() || self.high.is_some() || self.step.is_some()
    }

    /// Whether the bounds exclude every number.
    pub(crate) fn is_empty(&self) -> bool {
        let (Some(low), Some(high)) = (self.low, self.high) else { return false };
        low.value > high.value || low.value == high.value && (low.is_excluded || high.is_excluded)
    }

    pub(crate) fn and(self, other: &Self) -> Self {
        let step = match (self.step, other.step) {
            (Some(one), Some(other)) => Some(if other.value() > one.value() { other } else { one }),
            (one, other) => one.or(other),
        };
        Self { low: tightest(self.low, other.low, true), high: tightest(self.high, other.high, false), step }
    }

    /// Whether a number, given as text, fits.
    pub(crate) fn has(&self, text: &str) -> bool {
        let Ok(value) = text.parse::<f64>() else { return false };
        let whole: Option<i128> = text.parse().ok();
        let compare = |bound: &Bound| match (whole, bound.whole) {
            (Some(own), Some(bound)) => own.cmp(&bound),
            _ => value.total_cmp(&bound.value),
        };
        let is_low =
            self.low.is_some_and(|bound| compare(&bound).is_lt() || bound.is_excluded && compare(&bound).is_eq());
        let is_high =
            self.high.is_some_and(|bound| compare(&bound).is_gt() || bound.is_excluded && compare(&bound).is_eq());
        let is_multiple = |step: Decimal| match whole {
            Some(own) => own % step.whole() == 0,
            None => {
                let count = value / step.value();
                let near = count - count as i128 as f64;
                near.abs() < 1e-6 || near.abs() > 1.0 - 1e-6
            }
        };
        !is_low && !is_high && self.step.is_none_or(is_multiple)
    }

    pub(crate) fn integer(&self, usual: Usual, rng: &mut Rng) -> Result<String, String> {
        let step = self.step.map_or(1, Decimal::whole);
        let count = self.count(usual, rng, |value| value / step as f64, |whole| Some((whole, step)));
        let count = count.ok_or_else(|| format!("there is no integer {self}"))?;
        Ok(format!("{}", count.saturating_mul(step)))
    }

    /// A random number with two decimals, or with the decimals of the step. If the bounds are too close for that, it
    /// is one of the bounds or the middle.
    pub(crate) fn number(&self, usual: Usual, rng: &mut Rng) -> Result<String, String> {
        let step = self.step.unwrap_or(Decimal { digits: 1, places: 2 });
        let scale = ten_to(step.places);
        let by_step = |value: f64| if self.step.is_none() { value * 100.0 } else { value * scale / step.digits as f64 };
        let exact = |whole: i128| Some((whole.checked_mul(10_i128.pow(step.places))?, step.digits));
        if let Some(count) = self.count(usual, rng, by_step, exact) {
            return Ok(step.times(count));
        }
        let [low, high] = [self.low, self.high].map(|bound| bound.filter(|_| self.step.is_none()));
        let inner = [low, high].into_iter().flatten().find(|bound| !bound.is_excluded);
        let between = low.zip(high).map(|(low, high)| low.value + (high.value - low.value) / 2.0);
        let value = inner.map(|bound| bound.value).or(between).filter(|value| self.has(&format!("{value}")));
        value.map(|value| format!("{value}")).ok_or_else(|| format!("there is no number {self}"))
    }

    /// A random number of steps from zero. If the bounds are far away, it is near zero.
    fn count(
        &self,
        usual: Usual,
        rng: &mut Rng,
        by_step: impl Fn(f64) -> f64,
        exact: impl Fn(i128) -> Option<(i128, i128)>,
    ) -> Option<i128> {
        let steps = |bound: &Bound, is_low: bool| {
            let exact = bound.whole.and_then(&exact);
            let (value, is_exact) = match exact {
                Some((number, step)) if is_low => (-(-number).div_euclid(step), number % step == 0),
                Some((number, step)) => (number.div_euclid(step), number % step == 0),
                None if is_low => (ceil(by_step(bound.value)), false),
                None => (-ceil(-by_step(bound.value)), false),
            };
            let is_hit = is_exact || exact.is_none() && value as f64 == by_step(bound.value);
            value
                + if !bound.is_excluded || !is_hit {
                    0
                } else if is_low {
                    1
                } else {
                    -1
                }
        };
        let usual_low = usual.map(|(low, _)| ceil(by_step(low)));
        let usual_high = usual.map(|(_, high)| -ceil(-by_step(high)));
        let range = ceil(by_step(USUAL_RANGE as f64)).max(0);
        let low = self.low.as_ref().map(|bound| steps(bound, true));
        let high = self.high.as_ref().map(|bound| steps(bound, false));
        let (first, last) = match (low, high) {
            (Some(low), Some(high)) => (low, high),
            (Some(low), None) => (low, usual_high.filter(|high| *high >= low).unwrap_or(low.saturating_add(range))),
            (None, Some(high)) => (usual_low.filter(|low| *low <= high).unwrap_or(high.saturating_sub(range)), high),
            (None, None) => (usual_low.unwrap_or(0), usual_high.unwrap_or(range)),
        };
        let is_far = |bound: &Option<Bound>| bound.is_some_and(|bound| bound.value.abs() > FAR);
        let (first, last) = if is_far(&self.low) || is_far(&self.high) {
            near(low.unwrap_or(-WHOLE_MAX), high.unwrap_or(WHOLE_MAX), range)
        } else {
            (first, last)
        };
        if first > last {
            return None;
        }
        let count = u64::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        // Far below 2^64, so the remainder is nearly uniform.
        first.checked_add(i128::from(rng.next_u64() % count))
    }
}

/// The part of a range that is closest to zero.
fn near(first: i128, last: i128, range: i128) -> (i128, i128) {
    if last < 0 {
        return (first.max(last.saturating_sub(range)), last);
    }
    let first = first.max(0);
    (first, last.min(first.saturating_add(range)))
}

/// Rounds up to a whole number. `f64::ceil` needs std.
fn ceil(value: f64) -> i128 {
    let whole = (value as i128).clamp(-WHOLE_MAX, WHOLE_MAX);
    if (whole as f64) < value && whole < WHOLE_MAX { whole + 1 } else { whole }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words =
            [("from", self.low), ("to", self.high)].into_iter().filter_map(|(word, bound)| Some((word, bound?)));
        if let Some((word, bound)) = words.next() {
            write!(f, "{word} {}{}", bound.value, if bound.is_excluded { ", excluded," } else { "" })?;
        }
        for (word, bound) in words {
            write!(f, " {word} {}{}", bound.value, if bound.is_excluded { ", excluded" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        Range::read(&serde_json::from_str(text).expect("JSON"))
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
            let range = range(bounds);
            for seed in 0..200 {
                for text in [range.integer(None, &mut Rng::new(seed, 0)), range.number(None, &mut Rng::new(seed, 0))] {
                    let text = text.expect(bounds);
                    let value: f64 = text.parse().expect("a number");
                    assert!((low..=high).contains(&value), "{text} for {bounds}");
                }
            }
        }
        let exact = range(r#"{"exclusiveMinimum": 3, "exclusiveMaximum": 5}"#);
        assert_eq!(exact.integer(None, &mut Rng::new(1, 0)), Ok("4".into()));
    }

    #[test]
    fn bounds_too_close_or_too_far_are_taken_themselves() {
        let mut rng = Rng::new(1, 0);
        let close = range(r#"{"minimum": 0.001, "maximum": 0.002}"#);
        assert_eq!(close.number(None, &mut rng), Ok("0.001".into()));
        assert_eq!(close.integer(None, &mut rng), Err("there is no integer from 0.001 to 0.002".into()));
        let far = range(r#"{"maximum": 1e30}"#).number(None, &mut rng).expect("a number");
        assert!(far.parse::<f64>().is_ok_and(|far| far <= 1e30));
        let none = range(r#"{"minimum": 2, "maximum": 1}"#);
        assert_eq!(none.number(None, &mut rng), Err("there is no number from 2 to 1".into()));
    }

    #[test]
    fn usual_bounds_stand_where_the_schema_has_none() {
        let usual = Some((3.0, 4.0));
        let drawn = |text: &str| range(text).integer(usual, &mut Rng::new(5, 0)).expect("a number");
        assert!(["3", "4"].contains(&drawn("{}").as_str()));
        assert_eq!(drawn(r#"{"minimum": 4}"#), "4");
        assert_eq!(drawn(r#"{"maximum": 3}"#), "3");
        assert_eq!(drawn(r#"{"minimum": 9, "maximum": 9}"#), "9");
        assert!(drawn(r#"{"minimum": 9}"#).parse::<u32>().is_ok_and(|number| number >= 9));
    }

    #[test]
    fn bounds_of_types_of_numbers_are_those_of_small_numbers() {
        for (text, low, high) in [
            (r#"{"minimum": -9007199254740991, "maximum": 9007199254740991}"#, 0, 1_000),
            (r#"{"maximum": 9223372036854775807}"#, 0, 1_000),
            (r#"{"minimum": 0, "maximum": 18446744073709551615}"#, 0, 1_000),
            (r#"{"minimum": 4503599627370496}"#, 1 << 52, (1 << 52) + 1_000),
            (r#"{"minimum": -9e99, "maximum": -5}"#, -1_005, -5),
            (r#"{"minimum": -1.7014118346046923e38, "maximum": 1e300}"#, 0, 1_000),
            (r#"{"minimum": -1e308, "exclusiveMaximum": 0}"#, -1_001, -1),
            (r#"{"exclusiveMinimum": 9007199254740993, "maximum": 9007199254740995}"#, (1 << 53) + 2, (1 << 53) + 3),
            (r#"{"minimum": 1, "exclusiveMinimum": true, "maximum": 3, "exclusiveMaximum": true}"#, 2, 2),
        ] {
            for seed in 0..50 {
                let range = range(text);
                let drawn = range.integer(None, &mut Rng::new(seed, 0)).expect(text);
                assert!(drawn.parse().is_ok_and(|drawn: i128| (low..=high).contains(&drawn)), "{drawn} for {text}");
                assert!(range.has(&drawn), "{drawn} for {text}");
                let drawn = range.number(None, &mut Rng::new(seed, 0)).expect(text);
                assert!(drawn.parse::<f64>().is_ok(), "{drawn} for {text}");
            }
        }
    }

    #[test]
    fn multiples_are_multiples() {
        for (text, drawn, is_one) in [
            (r#"{"multipleOf": 5000, "minimum": 1}"#, true, 5_000.0),
            (r#"{"multipleOf": 7, "minimum": -20, "maximum": -10}"#, true, 7.0),
            (r#"{"multipleOf": 0.5, "minimum": 1, "maximum": 2}"#, true, 1.0),
            (r#"{"multipleOf": 0.01, "minimum": 0, "maximum": 1}"#, false, 0.01),
            (r#"{"multipleOf": 2.5, "exclusiveMinimum": 2.5, "maximum": 6}"#, false, 2.5),
            (r#"{"multipleOf": 1e-3}"#, false, 1e-3),
        ] {
            for seed in 0..50 {
                let range = range(text);
                let mut rng = Rng::new(seed, 0);
                let number = if drawn { range.integer(None, &mut rng) } else { range.number(None, &mut rng) };
                let number = number.expect(text);
                let value: f64 = number.parse().expect("a number");
                assert!((value / is_one - (value / is_one).round()).abs() < 1e-9, "{number} for {text}");
                assert!(range.has(&number), "{number} for {text}");
            }
        }
        assert!(range(r#"{"multipleOf": 7, "minimum": 8, "maximum": 13}"#).integer(None, &mut Rng::new(1, 0)).is_err());
    }
}
