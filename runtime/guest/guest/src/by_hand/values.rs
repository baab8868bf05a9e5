//! Converts between JSON, with the names of `wit/`, and the arguments and answers of calls.

use serde_json::{Map, Value};
use vcr_core::latency::EngineInfo;
use wasmtime::Store;
use wasmtime::component::types::{Record, Type};
use wasmtime::component::{Func, Val};

use crate::sandbox::HostState;

/// The arguments of a call. Missing fields are 0, empty or none, except those of [`default_of`].
pub(super) fn arguments(function: Func, store: &Store<HostState>, input: &Value) -> Result<Vec<Val>, String> {
    let ty = function.ty(store);
    let Value::Object(given) = input else { return Err(format!("expected an object of parameters, got {input}")) };
    let names: Vec<&str> = ty.params().map(|(name, _)| name).collect();
    unknown(given, &names, "")?;
    let read = |(name, ty): (&str, Type)| {
        let omitted = if given.contains_key(name) { None } else { default_of(name, &ty) };
        value(given.get(name).or(omitted.as_ref()), &ty, name)
    };
    ty.params().map(read).collect()
}

/// The default of a field for which 0 would mean something unusual.
fn default_of(field: &str, ty: &Type) -> Option<Value> {
    Some(match field {
        "block-size-tokens" => EngineInfo::default().block_size_tokens.into(),
        "kv-total-blocks" => EngineInfo::default().kv_total_blocks.into(),
        "tensor-parallel-size" | "pipeline-parallel-size" => 1.into(),
        "may-refuse" => true.into(),
        // One step, priced whatever its duration.
        "kv-active-blocks" if matches!(ty, Type::List(_)) => vec![0].into(),
        "horizon-ns" => u64::MAX.into(),
        "workers" => [("worker".to_owned(), Value::from(vec![0]))].into_iter().collect(),
        _ => return None,
    })
}

/// An input of a function with all fields. Lists of records have one entry and lists of variants one per case.
/// Columns have two rows for engines, otherwise one.
pub(super) fn example(function: Func, store: &Store<HostState>) -> Value {
    let ty = function.ty(store);
    ty.params().map(|(name, ty)| (name.to_owned(), sample(name, &ty))).collect()
}

fn sample(field: &str, ty: &Type) -> Value {
    let number = || match field.rsplit('-').next() {
        Some("tokens") => 64,
        Some("requests" | "count") => 1,
        Some("blocks") => 4,
        _ => 0,
    };
    match ty {
        Type::Record(record) if is_columns(record) => {
            let rows = if record.fields().any(|field| field.name == "worker") { 2 } else { 1 };
            record.fields().map(|field| (field.name.to_owned(), column_of(field.name, rows))).collect()
        }
        Type::Record(record) => {
            record.fields().map(|field| (field.name.to_owned(), sample(field.name, &field.ty))).collect()
        }
        Type::List(list) => match (list.ty(), field) {
            (Type::Variant(variant), _) => {
                let case = |name: &str, ty: Option<Type>| match ty {
                    None => Value::from(name),
                    Some(ty) => [(name.to_owned(), sample(name, &ty))].into_iter().collect(),
                };
                variant.cases().map(|of| case(of.name, of.ty)).collect()
            }
            (record @ Type::Record(_), _) => vec![sample(field, &record)].into(),
            // Hashes or tokens of a prompt, or active blocks.
            (_, "block-hashes" | "prompt" | "kv-active-blocks") => vec![1, 2].into(),
            _ => Value::Array(Vec::new()),
        },
        Type::Bool => true.into(),
        Type::String => (if field == "config" { "{}" } else { "example" }).into(),
        Type::Option(_) => Value::Null,
        Type::Enum(cases) => cases.names().next().into(),
        _ => default_of(field, ty).unwrap_or_else(|| number().into()),
    }
}

/// Whether all fields of a record are columns.
fn is_columns(record: &Record) -> bool {
    let is_list = |ty: &Type| matches!(ty, Type::List(_));
    let is_column = |ty: &Type| matches!(ty, Type::Option(option) if is_list(&option.ty())) || is_list(ty);
    record.fields().all(|field| is_column(&field.ty))
}

/// A default column of this many rows.
fn column_of(field: &str, rows: usize) -> Value {
    match field {
        "worker" | "slot" => (0..rows).collect(),
        "count" => vec![1; rows].into(),
        "max-running-requests" => vec![256; rows].into(),
        "total-blocks" => vec![EngineInfo::default().kv_total_blocks; rows].into(),
        _ => vec![0; rows].into(),
    }
}

/// Number of rows of a record of columns; none for other records.
fn rows(record: &Record, given: &Map<String, Value>, path: &str) -> Result<Option<usize>, String> {
    if !is_columns(record) {
        return Ok(None);
    }
    let lengths = given.iter().filter_map(|(name, column)| Some((name, column.as_array()?.len())));
    let mut first: Option<(&String, usize)> = None;
    for (name, length) in lengths {
        match first {
            Some((other, expected)) if expected != length => {
                return Err(format!(
                    "`{path}`: expected columns of one length, got {expected} entries of `{other}` and {length} of `{name}`"
                ));
            }
            _ => first = Some((name, length)),
        }
    }
    Ok(Some(first.map_or(0, |(_, rows)| rows)))
}

/// Refuses unknown fields.
fn unknown(given: &Map<String, Value>, names: &[&str], path: &str) -> Result<(), String> {
    match given.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown field `{}`: expected one of {}", joined(path, key), names.join(", "))),
        None => Ok(()),
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Converts JSON to a value of the type; a missing value is 0, empty or none.
fn value(given: Option<&Value>, ty: &Type, path: &str) -> Result<Val, String> {
    let wrong = |expected: &str| {
        let got = given.map_or_else(|| "nothing".to_owned(), Value::to_string);
        format!("`{path}`: expected {expected}, got {got}")
    };
    let whole = |least: i64, most: u64| match given {
        None => Ok(0),
        Some(value) => {
            let number = value.as_u64().map(i128::from).or_else(|| value.as_i64().map(i128::from));
            let number = number.filter(|number| (i128::from(least)..=i128::from(most)).contains(number));
            number.ok_or_else(|| wrong(&format!("a whole number from {least} to {most}")))
        }
    };
    Ok(match ty {
        Type::Bool => Val::Bool(match given {
            None => false,
            Some(value) => value.as_bool().ok_or_else(|| wrong("true or false"))?,
        }),
        Type::U8 => Val::U8(whole(0, u8::MAX.into())? as u8),
        Type::U16 => Val::U16(whole(0, u16::MAX.into())? as u16),
        Type::U32 => Val::U32(whole(0, u32::MAX.into())? as u32),
        Type::U64 => Val::U64(whole(0, u64::MAX)? as u64),
        Type::S32 => Val::S32(whole(i32::MIN.into(), i32::MAX as u64)? as i32),
        Type::S64 => Val::S64(whole(i64::MIN, i64::MAX as u64)? as i64),
        Type::Float64 => Val::Float64(match given {
            None => 0.0,
            Some(value) => value.as_f64().ok_or_else(|| wrong("a number"))?,
        }),
        Type::String => Val::String(match given {
            None => String::new(),
            Some(value) => value.as_str().ok_or_else(|| wrong("a text"))?.to_owned(),
        }),
        Type::List(list) => Val::List(match given {
            None => Vec::new(),
            Some(Value::Array(entries)) => {
                let entries = entries.iter().enumerate();
                entries
                    .map(|(index, entry)| value(Some(entry), &list.ty(), &format!("{path}[{index}]")))
                    .collect::<Result<_, _>>()?
            }
            Some(_) => return Err(wrong("a list")),
        }),
        Type::Option(option) => Val::Option(match given {
            None | Some(Value::Null) => None,
            some => Some(Box::new(value(some, &option.ty(), path)?)),
        }),
        Type::Record(record) => {
            let empty = Map::new();
            let fields = match given {
                None => &empty,
                Some(Value::Object(fields)) => fields,
                Some(_) => return Err(wrong("an object")),
            };
            let names: Vec<&str> = record.fields().map(|field| field.name).collect();
            unknown(fields, &names, path)?;
            let rows = rows(record, fields, path)?;
            let read = record.fields().map(|field| {
                let omitted = match (fields.get(field.name), rows) {
                    (Some(_), _) => None,
                    (None, Some(rows)) => Some(column_of(field.name, rows)),
                    (None, None) => default_of(field.name, &field.ty),
                };
                let given = fields.get(field.name).or(omitted.as_ref());
                let read = value(given, &field.ty, &joined(path, field.name))?;
                Ok((field.name.to_owned(), read))
            });
            Val::Record(read.collect::<Result<_, String>>()?)
        }
        Type::Enum(cases) => {
            let names: Vec<&str> = cases.names().collect();
            let name = match given {
                None => names.first().copied(),
                Some(value) => value.as_str().filter(|name| names.contains(name)),
            };
            Val::Enum(name.ok_or_else(|| wrong(&format!("one of {}", names.join(", "))))?.to_owned())
        }
        Type::Variant(variant) => {
            let names: Vec<&str> = variant.cases().map(|case| case.name).collect();
            let (name, payload) = match given {
                Some(Value::String(name)) => (name.as_str(), None),
                Some(Value::Object(fields)) if fields.len() == 1 => {
                    let (name, payload) = fields.iter().next().expect("it has one");
                    (name.as_str(), Some(payload))
                }
                _ => return Err(wrong(&format!("an object with one of {}", names.join(", ")))),
            };
            let case = variant.cases().find(|case| case.name == name);
            let case = case.ok_or_else(|| wrong(&format!("an object with one of {}", names.join(", "))))?;
            let payload = case.ty.map(|ty| value(payload, &ty, &joined(path, name)).map(Box::new)).transpose()?;
            Val::Variant(name.to_owned(), payload)
        }
        _ => return Err(format!("`{path}` has a type that cannot be written as JSON")),
    })
}

/// Converts a value to JSON. Numbers that JSON cannot represent become strings.
pub(super) fn json(value: Val) -> Value {
    match value {
        Val::Bool(value) => value.into(),
        Val::U8(value) => value.into(),
        Val::U16(value) => value.into(),
        Val::U32(value) => value.into(),
        Val::U64(value) => value.into(),
        Val::S8(value) => value.into(),
        Val::S16(value) => value.into(),
        Val::S32(value) => value.into(),
        Val::S64(value) => value.into(),
        Val::Float32(value) => number(value.into()),
        Val::Float64(value) => number(value),
        Val::String(text) | Val::Enum(text) => text.into(),
        Val::List(values) | Val::Tuple(values) => values.into_iter().map(json).collect(),
        Val::Record(fields) => fields.into_iter().map(|(name, value)| (name, json(value))).collect(),
        Val::Option(value) => value.map_or(Value::Null, |value| json(*value)),
        Val::Variant(name, None) => name.into(),
        Val::Variant(name, Some(value)) => [(name, json(*value))].into_iter().collect(),
        other => format!("{other:?}").into(),
    }
}

fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}
