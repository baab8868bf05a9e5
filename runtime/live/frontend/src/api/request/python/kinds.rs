//! Checks and converts values as Pydantic does.

use serde_json::{Map, Number, Value};

use super::words::{either, float, quoted, summary};

pub(super) enum Kind {
    Any,
    Bool,
    Float,
    Text,
    Int,
    /// An integer of at least this value.
    IntFrom(i64),
    /// An integer; 0 is read as null.
    IntOrNull,
    /// A 64-bit integer.
    Int64,
    OneOf(&'static [&'static str]),
    List(&'static Kind),
    /// A list with a minimum and a maximum length.
    ListOf(&'static Kind, usize, usize),
    Dict(&'static Kind),
    Optional(&'static Kind),
    /// One of several types. The text is the type's part of an error's location, and may be empty.
    Union(&'static [(&'static str, Kind)]),
    Model(&'static [Field]),
    /// A `TypedDict` with these keys.
    Typed(&'static [Field]),
    Dataclass(&'static str, &'static [Field]),
    /// An instance of a class that is not a Pydantic model, or its fields.
    Instance(&'static str, &'static [Field]),
    /// A string, or any value that has items.
    Iterable,
}

pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_required: bool,
}

pub(super) const fn required(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, is_required: true }
}

pub(super) const fn optional(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, is_required: false }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    kind: &'static str,
    pub(super) place: String,
    message: String,
    input: String,
    context: Option<String>,
}

impl Problem {
    fn missing(place: String, parent: &Value) -> Self {
        Self::new("missing", &place, "Field required", parent)
    }

    fn new(kind: &'static str, place: &str, message: impl Into<String>, input: &Value) -> Self {
        Self { kind, place: place.to_owned(), message: message.into(), input: summary(input), context: None }
    }

    fn with(self, context: String) -> Self {
        Self { context: Some(context), ..self }
    }

    /// The error for a body that is not JSON.
    pub(super) fn no_json(reason: &str, at: usize) -> Self {
        let empty = Value::Object(Map::new());
        Self::new("json_invalid", &format!("body.{at}"), "JSON decode error", &empty)
            .with(format!("'error': {}", quoted(reason)))
    }

    pub(super) fn no_body() -> Self {
        Self::missing("body".to_owned(), &Value::Null)
    }

    /// The error for a value that fails a custom check.
    pub(super) fn value_error(place: &str, reason: &str, input: &Value) -> Self {
        Self::new("value_error", place, format!("Value error, {reason}"), input)
            .with(format!("'error': ValueError({})", quoted(reason)))
    }

    /// The text of the error, as vLLM's handler writes it.
    pub(super) fn text(&self) -> String {
        let Self { kind, place, message, input, context } = self;
        let (kind, place, message, input) = (quoted(kind), quoted(place), quoted(message), quoted(input));
        let context = context.as_ref().map(|context| format!(", 'ctx': {{{context}}}")).unwrap_or_default();
        format!("{{'type': {kind}, 'loc': {place}, 'msg': {message}, 'input': {input}{context}}}")
    }
}

/// A validation in progress.
pub(super) struct Check {
    pub(super) problems: Vec<Problem>,
}

impl Check {
    /// Converts a value as Pydantic does. If it does not fit, adds to `problems` and returns none.
    pub(super) fn value(&mut self, kind: &Kind, value: &Value, place: &str, is_strict: bool) -> Option<Value> {
        match kind {
            Kind::Any => Some(value.clone()),
            Kind::Bool => self.bool(value, place, is_strict),
            Kind::Float => self.float(value, place, is_strict),
            Kind::Text => match value {
                Value::String(_) => Some(value.clone()),
                _ => self.fail("string_type", place, "Input should be a valid string", value),
            },
            Kind::Int => self.int(value, place, is_strict),
            Kind::IntFrom(least) => {
                let int = self.int(value, place, is_strict)?;
                if int.as_i64().is_some_and(|int| int < *least) {
                    return self.out_of_range(place, value, "greater", "ge", *least);
                }
                Some(int)
            }
            Kind::IntOrNull if value.is_null() => Some(0.into()),
            Kind::IntOrNull => self.int(value, place, is_strict),
            Kind::Int64 => {
                let int = self.int(value, place, is_strict)?;
                if int.as_i64().is_none() {
                    return self.out_of_range(place, value, "less", "le", i64::MAX);
                }
                Some(int)
            }
            Kind::OneOf(names) => {
                if value.as_str().is_some_and(|text| names.contains(&text)) {
                    return Some(value.clone());
                }
                let expected = either(names);
                let problem = Problem::new("literal_error", place, format!("Input should be {expected}"), value);
                self.problems.push(problem.with(format!("'expected': {}", quoted(&expected))));
                None
            }
            Kind::List(of) => self.list(of, (0, usize::MAX), value, place, is_strict),
            Kind::ListOf(of, least, most) => self.list(of, (*least, *most), value, place, is_strict),
            Kind::Dict(of) => {
                let Value::Object(fields) = value else {
                    return self.fail("dict_type", place, "Input should be a valid dictionary", value);
                };
                let checked = fields.iter().map(|(name, value)| {
                    Some((name.clone(), self.value(of, value, &format!("{place}.{name}"), is_strict)?))
                });
                let checked: Vec<_> = checked.collect();
                checked.into_iter().collect::<Option<Map<_, _>>>().map(Value::Object)
            }
            Kind::Optional(_) if value.is_null() => Some(Value::Null),
            Kind::Optional(kind) => self.value(kind, value, place, is_strict),
            Kind::Union(members) => self.union(members, value, place),
            Kind::Model(fields) => match value {
                Value::Object(_) => self.fields(fields, value, place, is_strict).map(without_nulls),
                _ => {
                    let message = "Input should be a valid dictionary or object to extract fields from";
                    self.fail("model_attributes_type", place, message, value)
                }
            },
            Kind::Typed(fields) => match value {
                Value::Object(_) => self.fields(fields, value, place, is_strict),
                _ => self.fail("dict_type", place, "Input should be a valid dictionary", value),
            },
            Kind::Dataclass(class, fields) => match value {
                Value::Object(_) => self.fields(fields, value, place, is_strict),
                _ => {
                    let message = format!("Input should be a dictionary or an instance of {class}");
                    let problem = Problem::new("dataclass_type", place, message, value);
                    self.problems.push(problem.with(format!("'class_name': {}", quoted(class))));
                    None
                }
            },
            Kind::Instance(class, fields) => {
                let before = self.problems.len();
                let message = format!("Input should be an instance of {class}");
                let problem = Problem::new("is_instance_of", place, message, value);
                self.problems.push(problem.with(format!("'class': {}", quoted(class))));
                let checked = match value {
                    Value::Object(_) => self.fields(fields, value, place, false).map(without_nulls),
                    _ => self.fail("dict_type", place, "Input should be a valid dictionary", value),
                };
                if checked.is_some() {
                    self.problems.truncate(before);
                }
                checked
            }
            Kind::Iterable => match value {
                Value::Array(_) | Value::Object(_) | Value::String(_) => Some(value.clone()),
                _ => self.fail("iterable_type", place, "Input should be iterable", value),
            },
        }
    }

    fn fail(&mut self, kind: &'static str, place: &str, message: &str, value: &Value) -> Option<Value> {
        self.problems.push(Problem::new(kind, place, message, value));
        None
    }

    fn out_of_range(&mut self, place: &str, value: &Value, than: &str, key: &str, limit: i64) -> Option<Value> {
        let kind = if than == "greater" { "greater_than_equal" } else { "less_than_equal" };
        let message = format!("Input should be {than} than or equal to {limit}");
        self.problems.push(Problem::new(kind, place, message, value).with(format!("'{key}': {limit}")));
        None
    }

    fn bool(&mut self, value: &Value, place: &str, is_strict: bool) -> Option<Value> {
        let read = match value {
            Value::Bool(value) => return Some((*value).into()),
            Value::Number(number) if !is_strict => match number.as_f64() {
                Some(0.0) => Some(false),
                Some(1.0) => Some(true),
                Some(number) if number.fract() != 0.0 || number.abs() >= 9.2e18 => {
                    return self.fail("bool_type", place, "Input should be a valid boolean", value);
                }
                _ => None,
            },
            Value::String(text) if !is_strict => match text.to_lowercase().as_str() {
                "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
                "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
                _ => None,
            },
            _ => return self.fail("bool_type", place, "Input should be a valid boolean", value),
        };
        let Some(read) = read else {
            let message = "Input should be a valid boolean, unable to interpret input";
            return self.fail("bool_parsing", place, message, value);
        };
        Some(read.into())
    }

    fn float(&mut self, value: &Value, place: &str, is_strict: bool) -> Option<Value> {
        match value {
            Value::Number(_) => Some(value.clone()),
            Value::Bool(value) if !is_strict => Some(f64::from(u8::from(*value)).into()),
            Value::String(text) if !is_strict => match text.trim().parse::<f64>().ok().and_then(Number::from_f64) {
                Some(number) => Some(number.into()),
                None => {
                    let message = "Input should be a valid number, unable to parse string as a number";
                    self.fail("float_parsing", place, message, value)
                }
            },
            _ => self.fail("float_type", place, "Input should be a valid number", value),
        }
    }

    fn int(&mut self, value: &Value, place: &str, is_strict: bool) -> Option<Value> {
        match value {
            Value::Number(number) if !number.is_f64() => Some(value.clone()),
            Value::Bool(value) if !is_strict => Some(u8::from(*value).into()),
            Value::Number(number) if !is_strict => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                if number.fract() != 0.0 {
                    let message = "Input should be a valid integer, got a number with a fractional part";
                    return self.fail("int_from_float", place, message, value);
                }
                if number.abs() >= 9.2e18 {
                    let message = "Unable to parse input string as an integer, exceeded maximum size";
                    return self.fail("int_parsing_size", place, message, value);
                }
                Some((number as i64).into())
            }
            Value::String(text) if !is_strict => match text.trim().parse::<i64>() {
                Ok(number) => Some(number.into()),
                Err(_) => {
                    let message = "Input should be a valid integer, unable to parse string as an integer";
                    self.fail("int_parsing", place, message, value)
                }
            },
            _ => self.fail("int_type", place, "Input should be a valid integer", value),
        }
    }

    fn list(
        &mut self,
        of: &Kind,
        (least, most): (usize, usize),
        value: &Value,
        place: &str,
        is_strict: bool,
    ) -> Option<Value> {
        let Value::Array(items) = value else {
            return self.fail("list_type", place, "Input should be a valid list", value);
        };
        let (kind, limit, name) =
            if items.len() < least { ("too_short", least, "min_length") } else { ("too_long", most, "max_length") };
        if !(least..=most).contains(&items.len()) {
            let count = items.len();
            let than = if kind == "too_short" { "least" } else { "most" };
            let ending = if limit == 1 { "" } else { "s" };
            let message = format!("List should have at {than} {limit} item{ending} after validation, not {count}");
            let context = format!("'field_type': 'List', '{name}': {limit}, 'actual_length': {count}");
            self.problems.push(Problem::new(kind, place, message, value).with(context));
            return None;
        }
        let checked: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.value(of, item, &format!("{place}.{index}"), is_strict))
            .collect();
        checked.into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
    }

    /// Returns the first type that fits without conversion, or else the first that fits with conversion.
    fn union(&mut self, members: &[(&str, Kind)], value: &Value, place: &str) -> Option<Value> {
        for is_strict in [true, false] {
            let mut problems = Vec::new();
            for (name, member) in members {
                let place = if name.is_empty() { place.to_owned() } else { format!("{place}.{name}") };
                let mut check = Check { problems: Vec::new() };
                if let Some(value) = check.value(member, value, &place, is_strict) {
                    return Some(value);
                }
                problems.extend(check.problems);
            }
            if !is_strict {
                self.problems.extend(problems);
            }
        }
        None
    }

    /// Checks the fields of an object. Unknown fields are kept.
    fn fields(&mut self, fields: &[Field], value: &Value, place: &str, is_strict: bool) -> Option<Value> {
        let before = self.problems.len();
        let mut checked = value.as_object().cloned().unwrap_or_default();
        for Field { name, kind, is_required } in fields {
            let place = format!("{place}.{name}");
            match value.get(name) {
                Some(given) => {
                    if let Some(given) = self.value(kind, given, &place, is_strict) {
                        checked.insert((*name).to_owned(), given);
                    }
                }
                None if *is_required => self.problems.push(Problem::missing(place, value)),
                None => {}
            }
        }
        (self.problems.len() == before).then_some(Value::Object(checked))
    }
}

/// Removes null fields, which count as missing.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// Returns a number, and its text as Python's float.
pub(super) fn as_float(value: &Value) -> Option<(f64, String)> {
    value.as_f64().map(|number| (number, float(number)))
}
