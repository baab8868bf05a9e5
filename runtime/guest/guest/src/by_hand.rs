//! Single calls of a guest by a user: an instance, with arguments and answers as JSON with the names of `wit/`.

mod answers;
mod values;

use serde_json::{Value, json};
use wasmtime::Store;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Func, Instance, Val};

use crate::by_hand::answers::AnswerCheck;
use crate::by_hand::values::{arguments, example, json as as_json};
use crate::error::{CallFault, GuestError};
use crate::limits::Budget;
use crate::module::GuestModule;
use crate::sandbox::{self, HostState, InstanceInputs};
use crate::versions;

/// The reason why a call by hand failed.
#[derive(Debug, thiserror::Error)]
pub enum HandCallError {
    /// The guest failed in this call or in `configure`.
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error("unknown function `{given}`: expected one of {}", known.join(", "))]
    UnknownFunction {
        /// The name as given.
        given: String,
        /// The functions of the guest's world.
        known: Vec<String>,
    },
    #[error("invalid input: {reason}")]
    BadInput {
        /// The path of the field, and the expected value.
        reason: String,
    },
}

/// One instance of a guest for calls by hand. It keeps its state between calls.
pub struct HandInstance<'m> {
    module: &'m GuestModule,
    config_json: &'m str,
    seed: u64,
    /// Name of the world's interface among the component's exports.
    export: String,
    known: Vec<String>,
    store: Store<HostState>,
    instance: Instance,
    is_configured: bool,
    answers: AnswerCheck,
}

impl<'m> HandInstance<'m> {
    /// Makes a fresh instance. The first call configures it, unless that call is `configure`.
    pub fn new(module: &'m GuestModule, config_json: &'m str, seed: u64) -> Result<Self, HandCallError> {
        let component = module.component();
        let export = format!("{}@{}", module.world().interface(), module.api_version());
        let limits = module.limits();
        let budget = limits.configure_budget(config_json.len());
        let mut store = sandbox::store(component.engine(), limits, InstanceInputs { seed, sink: None });
        let made = sandbox::allot(&mut store, budget)
            .and_then(|()| versions::linker(module.api_version(), component.engine(), limits))
            .and_then(|linker| linker.instantiate(&mut store, component));
        let instance =
            made.map_err(|error| failed(module, "instantiate", sandbox::fault_in(&store, &error, budget)))?;
        let known = functions(component, &export);
        let answers = AnswerCheck::new(module.world());
        Ok(Self { module, config_json, seed, export, known, store, instance, is_configured: false, answers })
    }

    /// Calls `function` and checks the answer as a run does. `input` is an object with the function's parameters.
    /// Missing columns get the length of the others; other missing fields are 0, empty or none.
    ///
    /// # Errors
    /// When there is no such function, the input does not fit, the guest fails or its answer is invalid.
    pub fn call(&mut self, function: &str, input: &Value) -> Result<Value, HandCallError> {
        self.must_know(function)?;
        let Self { module, config_json, seed, .. } = *self;
        let limits = module.limits();
        if !self.is_configured && function != "configure" {
            if let Some(reason) = module.schema_problems(config_json) {
                return Err(failed(module, "configure", CallFault::Rejected { reason }));
            }
            let configure = self.exported("configure");
            let given = json!({"config": config_json, "seed": seed});
            let arguments =
                arguments(configure, &self.store, &given).map_err(|reason| HandCallError::BadInput { reason })?;
            self.answered(configure, &arguments, limits.configure_budget(config_json.len()))
                .map_err(|fault| failed(module, "configure", fault))?;
        }
        self.is_configured = true;
        let called = self.exported(function);
        let arguments = arguments(called, &self.store, input).map_err(|reason| HandCallError::BadInput { reason })?;
        let named = called.ty(&self.store).params().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        let passed = named.into_iter().zip(arguments.iter().cloned().map(as_json)).collect();
        let budget = limits.budget(items(&passed), items(&passed) * 64);
        if function == "step" {
            self.store.data_mut().remarks.allow();
        }
        let answer = self.answered(called, &arguments, budget).map_err(|fault| failed(module, function, fault))?;
        let checked = self.answers.check(function, &passed, &answer, &mut self.store.data_mut().remarks);
        checked.map_err(|fault| failed(module, function, fault))?;
        Ok(answer)
    }

    /// Returns a valid input of `function` with all fields.
    pub fn example(&mut self, function: &str) -> Result<Value, HandCallError> {
        self.must_know(function)?;
        let called = self.exported(function);
        Ok(example(called, &self.store))
    }

    fn must_know(&self, function: &str) -> Result<(), HandCallError> {
        if self.known.iter().any(|name| name == function) {
            return Ok(());
        }
        Err(HandCallError::UnknownFunction { given: function.to_owned(), known: self.known.clone() })
    }

    fn exported(&mut self, function: &str) -> Func {
        let Self { instance, store, export, .. } = self;
        let interface = instance.get_export_index(&mut *store, None, export).expect("the module was checked for it");
        let index =
            instance.get_export_index(&mut *store, Some(&interface), function).expect("it is among the known ones");
        instance.get_func(&mut *store, index).expect("it is a function")
    }

    /// Makes a call and returns the answer, or the guest's failure as a fault.
    fn answered(&mut self, function: Func, arguments: &[Val], budget: Budget) -> Result<Value, CallFault> {
        let store = &mut self.store;
        let mut results = vec![Val::Bool(false); function.ty(&*store).results().len()];
        sandbox::allot(store, budget)
            .and_then(|()| function.call(&mut *store, arguments, &mut results))
            .map_err(|error| sandbox::fault_in(store, &error, budget))?;
        match results.pop() {
            Some(Val::Result(Ok(value))) => Ok(value.map_or(Value::Null, |value| as_json(*value))),
            Some(Val::Result(Err(failure))) => Err(CallFault::Rejected { reason: reason(failure) }),
            Some(value) => Ok(as_json(value)),
            None => Ok(Value::Null),
        }
    }
}

fn failed(module: &GuestModule, call: &str, fault: CallFault) -> HandCallError {
    GuestError::of_call(module.name(), shown(call), fault, module.example_config()).into()
}

/// The name of the call in errors.
fn shown(function: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["instantiate", "configure", "price-step", "price-decodes", "decide", "route", "step"];
    KNOWN.into_iter().find(|known| *known == function).unwrap_or("call")
}

fn functions(component: &Component, export: &str) -> Vec<String> {
    let engine = component.engine();
    let ty = component.component_type();
    let interface = ty.exports(engine).find(|(name, _)| *name == export);
    let Some((_, item)) = interface else { return Vec::new() };
    let ComponentItem::ComponentInstance(interface) = item.ty else { return Vec::new() };
    let functions = interface.exports(engine).filter(|(_, item)| matches!(item.ty, ComponentItem::ComponentFunc(_)));
    functions.map(|(name, _)| name.to_owned()).collect()
}

/// The text of a failure: its message, then its traceback.
fn reason(failure: Option<Box<Val>>) -> String {
    let failure = failure.map_or(Value::Null, |failure| as_json(*failure));
    match (&failure["message"], &failure["traceback"]) {
        (Value::String(message), Value::String(traceback)) => format!("{message}\n{traceback}"),
        (Value::String(message), _) => message.clone(),
        _ => failure.to_string(),
    }
}

/// Length of the longest list in the input, which determines the budget of the call.
fn items(input: &Value) -> usize {
    match input {
        Value::Array(entries) => entries.len().max(entries.iter().map(items).max().unwrap_or(0)),
        Value::Object(fields) => fields.values().map(items).max().unwrap_or(0),
        _ => 1,
    }
}
