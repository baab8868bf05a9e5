//! One call of a guest by hand: a fresh instance, its arguments and its answer as JSON with the
//! names of `wit/`.

use serde_json::{Map, Value};
use wasmtime::Store;
use wasmtime::component::types::{ComponentItem, Type};
use wasmtime::component::{Component, Func, Instance, Val};

use crate::error::{CallFault, GuestError};
use crate::module::GuestModule;
use crate::sandbox::{self, HostState, InstanceInputs};
use crate::versions;

/// Why a call by hand gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum HandCallError {
    /// The guest failed, in this call or while it configured itself.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// There is no such function.
    #[error("unknown function `{given}`: expected one of {}", known.join(", "))]
    UnknownFunction {
        /// The name as it was given.
        given: String,
        /// The functions of the guest's world.
        known: Vec<String>,
    },
    /// The input is not what the function takes.
    #[error("invalid input: {reason}")]
    BadInput {
        /// The path of the field, and what is expected there.
        reason: String,
    },
}

/// Makes one call of the function `function` in a fresh, configured instance. `input` is an object
/// with the function's parameters; what is left out is 0, empty or none.
///
/// # Errors
/// When there is no such function, the input does not fit, or the guest fails.
pub fn call(
    module: &GuestModule,
    config_json: &str,
    seed: u64,
    function: &str,
    input: &Value,
) -> Result<Value, HandCallError> {
    let component = module.component();
    let export = format!("{}@{}", module.world().interface(), module.api_version());
    let known = functions(component, &export);
    if !known.iter().any(|name| name == function) {
        return Err(HandCallError::UnknownFunction { given: function.to_owned(), known });
    }
    let limits = module.limits();
    let failed = |call: &str, fault| GuestError::of_call(module.name(), shown(call), fault, module.example_config());

    let budget = limits.configure_budget(config_json.len());
    let mut store = sandbox::store(component.engine(), limits, InstanceInputs { seed, sink: None });
    let made = sandbox::allot(&mut store, budget)
        .and_then(|()| versions::linker(module.api_version(), component.engine(), limits))
        .and_then(|linker| linker.instantiate(&mut store, component));
    let instance = made.map_err(|error| failed("instantiate", sandbox::fault(&error, budget)))?;
    if function != "configure" {
        if let Some(reason) = module.schema_problems(config_json) {
            return Err(failed("configure", CallFault::Rejected { reason }).into());
        }
        let arguments = [Val::String(config_json.to_owned()), Val::U64(seed)];
        let configure = exported(&instance, &mut store, &export, "configure");
        answered(&mut store, configure, &arguments, budget).map_err(|fault| failed("configure", fault))?;
    }
    let called = exported(&instance, &mut store, &export, function);
    let arguments = arguments(called, &store, input).map_err(|reason| HandCallError::BadInput { reason })?;
    let budget = limits.budget(items(input), items(input) * 64);
    sandbox::allot(&mut store, budget).map_err(|error| failed(function, sandbox::fault(&error, budget)))?;
    store.data_mut().remarks.allow();
    let answer = answered(&mut store, called, &arguments, budget).map_err(|fault| failed(function, fault))?;
    Ok(answer)
}

/// The name of a call as errors show it.
fn shown(function: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["instantiate", "configure", "price-step", "price-decodes", "decide", "route", "step"];
    KNOWN.into_iter().find(|known| *known == function).unwrap_or("call")
}

/// The functions of an exported interface.
fn functions(component: &Component, export: &str) -> Vec<String> {
    let engine = component.engine();
    let ty = component.component_type();
    let interface = ty.exports(engine).find(|(name, _)| *name == export);
    let Some((_, item)) = interface else { return Vec::new() };
    let ComponentItem::ComponentInstance(interface) = item.ty else { return Vec::new() };
    let functions = interface.exports(engine).filter(|(_, item)| matches!(item.ty, ComponentItem::ComponentFunc(_)));
    functions.map(|(name, _)| name.to_owned()).collect()
}

fn exported(instance: &Instance, store: &mut Store<HostState>, export: &str, function: &str) -> Func {
    let interface = instance.get_export_index(&mut *store, None, export).expect("the module was checked for it");
    let index = instance.get_export_index(&mut *store, Some(&interface), function).expect("it is among the known ones");
    instance.get_func(&mut *store, index).expect("it is a function")
}

/// Makes a call and gives what it answers where it is not a failure.
fn answered(
    store: &mut Store<HostState>,
    function: Func,
    arguments: &[Val],
    budget: crate::limits::Budget,
) -> Result<Value, CallFault> {
    let mut results = vec![Val::Bool(false); function.ty(&*store).results().len()];
    function.call(&mut *store, arguments, &mut results).map_err(|error| sandbox::fault(&error, budget))?;
    match results.pop() {
        Some(Val::Result(Ok(value))) => Ok(value.map_or(Value::Null, |value| json(*value))),
        Some(Val::Result(Err(failure))) => Err(CallFault::Rejected { reason: reason(failure) }),
        Some(value) => Ok(json(value)),
        None => Ok(Value::Null),
    }
}

/// The words of a failure: its message, and its traceback below.
fn reason(failure: Option<Box<Val>>) -> String {
    let failure = failure.map_or(Value::Null, |failure| json(*failure));
    match (&failure["message"], &failure["traceback"]) {
        (Value::String(message), Value::String(traceback)) => format!("{message}\n{traceback}"),
        (Value::String(message), _) => message.clone(),
        _ => failure.to_string(),
    }
}

/// Entries of the longest list in the input: what a call is about.
fn items(input: &Value) -> usize {
    match input {
        Value::Array(entries) => entries.len().max(entries.iter().map(items).max().unwrap_or(0)),
        Value::Object(fields) => fields.values().map(items).max().unwrap_or(0),
        _ => 1,
    }
}

fn arguments(function: Func, store: &Store<HostState>, input: &Value) -> Result<Vec<Val>, String> {
    let ty = function.ty(store);
    let Value::Object(given) = input else { return Err(format!("expected an object of parameters, got {input}")) };
    let names: Vec<&str> = ty.params().map(|(name, _)| name).collect();
    unknown(given, &names, "")?;
    ty.params().map(|(name, ty)| value(given.get(name), &ty, name)).collect()
}

/// Refuses fields that there are not.
fn unknown(given: &Map<String, Value>, names: &[&str], path: &str) -> Result<(), String> {
    match given.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown field `{}`: expected one of {}", joined(path, key), names.join(", "))),
        None => Ok(()),
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The value of a type; where none is given, 0, empty or none.
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
            let read = record.fields().map(|field| {
                let read = value(fields.get(field.name), &field.ty, &joined(path, field.name))?;
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

/// A value as JSON. Numbers that JSON has not are texts.
fn json(value: Val) -> Value {
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
