//! Latency models, routers and scheduling policies that are Python objects, for experiments: each
//! call takes the interpreter's lock and makes Python values, so a run takes a hundred times as
//! long as with a native or a guest one.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use vcr_core::PluginContext;
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, StepShape, price_until_horizon};
use vcr_core::policy::{EngineView, PolicyError, PolicyEvent, Preference, SchedulingPolicy};
use vcr_core::route::{Choice, EndedRequest, RouteError, RoutePhase, RouteRequest, Router, WorkerLoad};
use vcr_scenario::HostPlugin;

/// The plugin of a class, or of anything that makes objects when it is called with a context.
pub(crate) fn plugin(py: Python<'_>, name: &str, class: Py<PyAny>) -> PyResult<HostPlugin> {
    let (name, class) = (Arc::<str>::from(name), Arc::new(class));
    let has = |method: &str| class.bind(py).hasattr(method);
    let [is_latency, is_router, is_policy] = [has("step_ns")?, has("route")?, has("decide")?];
    if is_latency {
        return Ok(HostPlugin::Latency(Arc::new(move |context| {
            let failed = |reason| LatencyError { model: name.to_string(), reason };
            let object = Python::attach(|py| make(py, &class, context)).map_err(failed)?;
            Ok(Box::new(PythonLatency { name: Arc::clone(&name), object }))
        })));
    }
    if is_router {
        return Ok(HostPlugin::Router(Arc::new(move |context| {
            let failed = |reason| RouteError { router: name.to_string(), reason };
            let object = Python::attach(|py| make(py, &class, context)).map_err(failed)?;
            let needs_ended = Python::attach(|py| object.bind(py).hasattr("ended").unwrap_or(false));
            Ok(Box::new(PythonRouter { name: Arc::clone(&name), object, needs_ended }))
        })));
    }
    if is_policy {
        return Ok(HostPlugin::Policy(Arc::new(move |context| {
            let failed = |reason| PolicyError { policy: name.to_string(), reason };
            let object = Python::attach(|py| make(py, &class, context)).map_err(failed)?;
            Ok(Box::new(PythonPolicy { name: Arc::clone(&name), object }))
        })));
    }
    Err(PyTypeError::new_err(format!(
        "invalid plugin `{name}`: expected a class with step_ns (a latency model), route (a router) or decide (a \
         scheduling policy)"
    )))
}

/// Calls the class with the place that the object is for.
fn make(py: Python<'_>, class: &Py<PyAny>, context: &PluginContext<'_>) -> Result<Py<PyAny>, String> {
    let PluginContext { run, pool, engine, seed, .. } = *context;
    let made = py.import("vcr._plugins").and_then(|plugins| {
        let context = plugins.getattr("PluginContext")?.call1((run, pool, engine, seed))?;
        class.call1(py, (context,))
    });
    made.map_err(|error| described(py, &error))
}

/// An exception in a line: its text, and where it was raised.
fn described(py: Python<'_>, error: &PyErr) -> String {
    let place = || -> PyResult<String> {
        let Some(mut trace) = error.traceback(py).map(Bound::into_any) else { return Ok(String::new()) };
        loop {
            let next = trace.getattr("tb_next")?;
            if next.is_none() {
                break;
            }
            trace = next;
        }
        let file: String = trace.getattr("tb_frame")?.getattr("f_code")?.getattr("co_filename")?.extract()?;
        let line: u64 = trace.getattr("tb_lineno")?.extract()?;
        Ok(format!(" ({file}:{line})"))
    };
    format!("{error}{}", place().unwrap_or_default())
}

struct PythonLatency {
    name: Arc<str>,
    object: Py<PyAny>,
}

impl LatencyModel for PythonLatency {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        Python::attach(|py| {
            price_until_horizon(batch, durations_ns, |shape| {
                let priced = shape_of(py, shape)
                    .and_then(|shape| self.object.call_method1(py, "step_ns", (shape,))?.extract::<u64>(py));
                priced.map_err(|error| LatencyError { model: self.name.to_string(), reason: described(py, &error) })
            })
        })
    }
}

fn shape_of<'py>(py: Python<'py>, shape: &StepShape) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let StepShape {
        prefill_requests,
        prefill_tokens,
        prefill_context_tokens,
        prefill_attention_pairs,
        prefill_completions,
        prefill_completion_context_tokens,
        decode_requests,
        decode_tokens,
        decode_context_tokens,
        sampled_requests,
        kv_active_blocks,
        kv_total_blocks,
        block_size_tokens,
        waiting_requests,
        adapter_count,
        adapter_tokens,
        recompute: _,
        encoder: _,
    } = *shape;
    dict.set_item("prefill_requests", prefill_requests)?;
    dict.set_item("prefill_tokens", prefill_tokens)?;
    dict.set_item("prefill_context_tokens", prefill_context_tokens)?;
    dict.set_item("prefill_attention_pairs", prefill_attention_pairs)?;
    dict.set_item("prefill_completions", prefill_completions)?;
    dict.set_item("prefill_completion_context_tokens", prefill_completion_context_tokens)?;
    dict.set_item("decode_requests", decode_requests)?;
    dict.set_item("decode_tokens", decode_tokens)?;
    dict.set_item("decode_context_tokens", decode_context_tokens)?;
    dict.set_item("sampled_requests", sampled_requests)?;
    dict.set_item("kv_active_blocks", kv_active_blocks)?;
    dict.set_item("kv_total_blocks", kv_total_blocks)?;
    dict.set_item("block_size_tokens", block_size_tokens)?;
    dict.set_item("waiting_requests", waiting_requests)?;
    dict.set_item("adapter_count", adapter_count)?;
    dict.set_item("adapter_tokens", adapter_tokens)?;
    Ok(dict)
}

struct PythonRouter {
    name: Arc<str>,
    object: Py<PyAny>,
    needs_ended: bool,
}

impl Router for PythonRouter {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        Python::attach(|py| {
            let route = || -> PyResult<Option<usize>> {
                let loads = workers.iter().map(|load| load_of(py, load)).collect::<PyResult<Vec<_>>>()?;
                let arguments = (query_of(py, query)?, PyList::new(py, loads)?);
                self.object.call_method1(py, "route", arguments)?.extract(py)
            };
            let failed = |reason| RouteError { router: self.name.to_string(), reason };
            match route().map_err(|error| failed(described(py, &error)))? {
                Some(index) if index < workers.len() => Ok(Choice::Worker(workers[index].worker)),
                Some(index) => {
                    Err(failed(format!("route returned {index}: expected an index below {}", workers.len())))
                }
                None => Ok(Choice::Refuse),
            }
        })
    }

    fn needs_overlap(&self) -> bool {
        true
    }

    fn needs_tiers(&self) -> bool {
        true
    }

    fn needs_ended(&self) -> bool {
        self.needs_ended
    }

    fn ended(&mut self, request: &EndedRequest) {
        let EndedRequest { id, worker, output_tokens, failed, .. } = *request;
        Python::attach(|py| {
            if let Err(error) = self.object.call_method1(py, "ended", (id, worker, output_tokens, failed)) {
                // The trait has no way to refuse here, and Python has one for just this case.
                error.write_unraisable(py, Some(self.object.bind(py)));
            }
        });
    }
}

fn query_of<'py>(py: Python<'py>, query: &RouteRequest<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("now_ns", query.now_ns)?;
    dict.set_item("id", query.id)?;
    dict.set_item("prompt_tokens", query.prompt_tokens)?;
    dict.set_item("max_tokens", query.max_tokens)?;
    dict.set_item("priority", query.priority)?;
    dict.set_item("adapter", query.adapter)?;
    dict.set_item("tenant", query.tenant)?;
    dict.set_item("session", query.session)?;
    dict.set_item("block_size_tokens", query.block_size_tokens)?;
    dict.set_item("may_refuse", query.may_refuse)?;
    let phase = match query.phase {
        RoutePhase::Whole => "whole",
        RoutePhase::Prefill => "prefill",
        RoutePhase::Decode => "decode",
    };
    dict.set_item("phase", phase)?;
    Ok(dict)
}

fn load_of<'py>(py: Python<'py>, load: &WorkerLoad) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("worker", load.worker)?;
    dict.set_item("running_requests", load.running_requests)?;
    dict.set_item("waiting_requests", load.waiting_requests)?;
    dict.set_item("max_running_requests", load.max_running_requests)?;
    dict.set_item("active_blocks", load.active_blocks)?;
    dict.set_item("total_blocks", load.total_blocks)?;
    dict.set_item("outstanding_prefill_tokens", load.outstanding_prefill_tokens)?;
    dict.set_item("cached_prompt_blocks", load.cached_prompt_blocks)?;
    dict.set_item("host_prompt_blocks", load.host_prompt_blocks)?;
    dict.set_item("disk_prompt_blocks", load.disk_prompt_blocks)?;
    dict.set_item("loading_requests", load.loading_requests)?;
    dict.set_item("last_step_ns", load.last_step_ns)?;
    dict.set_item("preemption_count", load.preemption_count)?;
    Ok(dict)
}

struct PythonPolicy {
    name: Arc<str>,
    object: Py<PyAny>,
}

impl SchedulingPolicy for PythonPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        Python::attach(|py| {
            let decide = || -> PyResult<Vec<(String, u32, i64)>> {
                let decided = self.object.call_method1(py, "decide", (batch_of(py, batch)?,))?;
                decided.bind(py).try_iter()?.map(|preference| preference?.extract()).collect()
            };
            let failed = |reason| PolicyError { policy: self.name.to_string(), reason };
            for (kind, slot, value) in decide().map_err(|error| failed(described(py, &error)))? {
                let tokens = u32::try_from(value);
                preferences.push(match (kind.as_str(), tokens) {
                    ("admission_rank", _) => Preference::AdmissionRank { slot, rank: value },
                    ("eviction_rank", _) => Preference::EvictionRank { slot, rank: value },
                    ("chunk_cap", Ok(tokens)) => Preference::ChunkCap { slot, tokens: Some(tokens) },
                    ("chunk_cap", Err(_)) => {
                        return Err(failed(format!("invalid chunk_cap {value}: expected 0 to {}", u32::MAX)));
                    }
                    _ => {
                        let expected = "expected admission_rank, eviction_rank or chunk_cap";
                        return Err(failed(format!("invalid preference `{kind}`: {expected}")));
                    }
                });
            }
            Ok(())
        })
    }
}

fn batch_of<'py>(py: Python<'py>, batch: &EngineView<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("now_ns", batch.now_ns)?;
    dict.set_item("budget_tokens", batch.budget_tokens)?;
    dict.set_item("running_slots", batch.running_slots)?;
    dict.set_item("free_blocks", batch.free_blocks)?;
    dict.set_item("total_blocks", batch.total_blocks)?;
    let events = batch.events.iter().map(|event| event_of(py, event)).collect::<PyResult<Vec<_>>>()?;
    dict.set_item("events", events)?;
    let progress = batch.progress.iter().map(|of| (of.slot, of.computed_tokens, of.output_tokens));
    dict.set_item("progress", progress.collect::<Vec<_>>())?;
    Ok(dict)
}

fn event_of<'py>(py: Python<'py>, event: &PolicyEvent) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match *event {
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, adapter, tenant, slo } => {
            dict.set_item("event", "arrived")?;
            dict.set_item("slot", slot)?;
            dict.set_item("arrival_ns", arrival_ns)?;
            dict.set_item("prompt_tokens", prompt_tokens)?;
            dict.set_item("max_tokens", max_tokens)?;
            dict.set_item("priority", priority)?;
            dict.set_item("adapter", adapter)?;
            dict.set_item("tenant", tenant)?;
            dict.set_item("ttft_limit_ns", slo.ttft_ns)?;
            dict.set_item("tpot_limit_ns", slo.tpot_ns)?;
            dict.set_item("e2e_limit_ns", slo.e2e_ns)?;
        }
        PolicyEvent::Admitted { slot, cached_tokens } => {
            dict.set_item("event", "admitted")?;
            dict.set_item("slot", slot)?;
            dict.set_item("cached_tokens", cached_tokens)?;
        }
        PolicyEvent::Preempted { slot } => {
            dict.set_item("event", "preempted")?;
            dict.set_item("slot", slot)?;
        }
        PolicyEvent::Ended { slot, computed_tokens, output_tokens } => {
            dict.set_item("event", "ended")?;
            dict.set_item("slot", slot)?;
            dict.set_item("computed_tokens", computed_tokens)?;
            dict.set_item("output_tokens", output_tokens)?;
        }
    }
    Ok(dict)
}
