//! The Jinja environment, set up as in Transformers.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::python;
use crate::{TemplateError, TemplateErrorKind};

pub(super) const NAME: &str = "chat template";

/// Limit of work for one rendering: one unit per instruction and per 64 bytes of text. A chat of ten thousand
/// messages takes a few million.
const FUEL: u64 = 20_000_000;

/// Marks errors from `raise_exception`.
const RAISED: &str = "raised by the template: ";

/// minijinja's error, without a kind of its own, for a range of more than 100,000 numbers.
const LONG_RANGE: &str = "range has too many elements";

/// Creates an environment that contains only this template and loads no files.
pub(super) fn compiled(source: &str) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| failed(&error))?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _, value| out.write_str(&python::text(value)).map_err(Error::from));
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", |value: &Value, arguments: Rest<Value>, options: Kwargs| {
        python::tojson(value, &arguments, &options)
    });
    environment.add_filter("string", |value: &Value| python::text(value).into_owned());
    // As in Jinja, an undefined value is iterable and a string is a sequence.
    environment.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", python::text(message))))
    });
    environment.add_function("strftime_now", |_: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: no time is given"))
    });
    let source = rewritten(source);
    environment.add_template_owned(NAME, source).map_err(|error| failed(&error))?;
    Ok(environment)
}

/// Makes `strftime_now` return this time, in UTC.
pub(super) fn fixed_clock(environment: &mut Environment<'static>, now_s: i64) {
    environment.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
        let refused = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
        let now = jiff::Timestamp::from_second(now_s).map_err(refused)?.to_zoned(jiff::tz::TimeZone::UTC);
        jiff::fmt::strtime::format(format, &now).map_err(refused)
    });
}

/// Converts an error, with its line and causes.
pub(super) fn failed(error: &Error) -> TemplateError {
    let mut reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let mut deepest = error;
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        if let Some(inner) = source.downcast_ref::<Error>() {
            deepest = inner;
            reason = inner.detail().map_or_else(|| inner.kind().to_string(), str::to_owned);
        }
        cause = source.source();
    }
    let kind = match deepest.kind() {
        _ if reason.starts_with(RAISED) => TemplateErrorKind::Raised,
        ErrorKind::SyntaxError => TemplateErrorKind::Syntax,
        ErrorKind::OutOfFuel => TemplateErrorKind::Limit,
        _ if reason == LONG_RANGE => TemplateErrorKind::Limit,
        ErrorKind::TemplateNotFound => TemplateErrorKind::File,
        _ => TemplateErrorKind::Render,
    };
    if kind == TemplateErrorKind::Limit {
        reason = "the template takes too much work: it may loop forever".to_owned();
    }
    if kind == TemplateErrorKind::File {
        reason = format!("the template reads no files: {reason}");
    }
    let reason = reason.strip_prefix(RAISED).unwrap_or(&reason).to_owned();
    TemplateError { kind, line: error.line().or(deepest.line()), reason }
}

/// Methods of Python's `str` that `minijinja-contrib` lacks.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let given = arguments.first().and_then(Value::as_str);
    if let (Some(text), Some(given)) = (value.as_str(), given) {
        let parts = |found: Option<(&str, &str)>, missed: [&str; 3]| {
            let parts = found.map_or(missed, |(before, after)| [before, given, after]);
            Value::from_iter(parts)
        };
        match name {
            "removeprefix" => return Ok(Value::from(text.strip_prefix(given).unwrap_or(text))),
            "removesuffix" => return Ok(Value::from(text.strip_suffix(given).unwrap_or(text))),
            "partition" => return Ok(parts(text.split_once(given), [text, "", ""])),
            "rpartition" => return Ok(parts(text.rsplit_once(given), ["", "", text])),
            "rsplit" => {
                let most = arguments.get(1).and_then(Value::as_usize).map_or(usize::MAX, |most| most.saturating_add(1));
                let mut parts: Vec<&str> = text.rsplitn(most, given).collect();
                parts.reverse();
                return Ok(Value::from_iter(parts));
            }
            _ => {}
        }
    }
    unknown_method_callback(state, value, name, arguments)
}

/// Rewrites syntax that minijinja handles differently from Transformers. `{% generation %}` only marks text for
/// training; it becomes a condition that is always true.
fn rewritten(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(length) = rest[at..].find("%}") else { break };
        let tag = &rest[at + 2..at + length];
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..at]);
        match word {
            "generation" => out += &format!("{{%{}%}}", tag.replace("generation", "if true")),
            "endgeneration" => out += &format!("{{%{}%}}", tag.replace("endgeneration", "endif")),
            // Jinja always keeps the newline after this tag.
            "raw" if !tag.ends_with(['-', '+']) => out += &format!("{{%{tag}+%}}"),
            _ => out.push_str(&rest[at..at + length + 2]),
        }
        rest = &rest[at + length + 2..];
    }
    out + rest
}
