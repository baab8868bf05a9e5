//! Utility calls: the functions of vLLM's EngineCore that frontends call.

use vcr_wire::{Integer, LoraRequest, Protocol, UtilityCall, UtilityOutput, Value, WakeUpResult};

use crate::admin::Admin;
use crate::admin::pause::{PauseMode, PendingCall};
use crate::error::LiveError;
use crate::faults::injector::InjectorEvent;
use crate::serving::Serving;

enum Outcome {
    Returned(Value),
    Failed(String),
    /// Answered when the pause is complete.
    Pending(PauseMode, PendingCall),
}

impl Admin {
    /// Handles a utility call. The answer is sent at once or when its pause is complete.
    pub(crate) fn handle_utility(
        &mut self,
        serving: &mut Serving,
        call: UtilityCall,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let UtilityCall { client_index: client, call_id, method, args } = call;
        if !serving.egress.outputs.has_client(client) {
            serving.counters.malformed += 1;
            tracing::warn!(rank = serving.context.rank, method, client, "there is no such API server");
            return Ok(());
        }
        if !serving.lifecycle.is_running() {
            let output =
                UtilityOutput { call_id, failure_message: Some("Server shutting down".to_owned()), result: None };
            return Ok(serving.egress.outputs.send_utility(client, output)?);
        }
        tracing::debug!(rank = serving.context.rank, method, ?args, "utility call");
        serving.injector.record(|| InjectorEvent::Utility { method: method.clone() });
        serving.run_injector(now_ns)?;
        let outcome = if serving.faults.fails_utility(&method, serving.context.since_start_ns(now_ns)) {
            Outcome::Failed("a fault was injected".to_owned())
        } else {
            self.call(serving, &method, &args, client, call_id)
        };
        serving.snapshot.expire();
        let output = match outcome {
            Outcome::Returned(value) => UtilityOutput::returned(call_id, value),
            Outcome::Failed(reason) => {
                serving.counters.utility_failures += 1;
                tracing::warn!(rank = serving.context.rank, method, "a utility call failed: {reason}");
                UtilityOutput::failed(call_id, &method, &reason)
            }
            Outcome::Pending(mode, call) => return self.pause(serving, mode, call, now_ns),
        };
        serving.counters.utility_calls += 1;
        Ok(serving.egress.outputs.send_utility(client, output)?)
    }

    fn call(&mut self, serving: &mut Serving, method: &str, args: &[Value], client: u32, call_id: Integer) -> Outcome {
        let pending = |mode: &str, clear_cache, sleep_level| match PauseMode::of(mode) {
            Ok(mode) => {
                let call = PendingCall { client, call_id, method: method.to_owned(), clear_cache, sleep_level };
                Outcome::Pending(mode, call)
            }
            Err(reason) => Outcome::Failed(reason),
        };
        let flag = |index: usize, default| args.get(index).and_then(Value::as_bool).unwrap_or(default);
        let text = |index: usize, default| args.get(index).and_then(Value::as_str).unwrap_or(default);
        match method {
            "get_supported_tasks" => {
                let embeds = serving.context.config.tokens.embedding_dimensions.map(|_| Value::from("embed"));
                Outcome::Returned(Value::Array([Value::from("generate")].into_iter().chain(embeds).collect()))
            }
            "is_sleeping" => Outcome::Returned((serving.stepper.is_paused() || self.pauses.is_asleep()).into()),
            "is_scheduler_paused" => Outcome::Returned(serving.stepper.is_paused().into()),
            "reset_prefix_cache" => Outcome::Returned(serving.reset_prefix_cache(flag(0, false)).into()),
            "pause_scheduler" => pending(text(0, "abort"), flag(1, true), 0),
            "pause_generation" => {
                let outcome = pending(text(0, "abort"), flag(1, true), 0);
                if matches!(outcome, Outcome::Pending(..)) {
                    self.pauses.rejects_new = text(0, "abort") != "keep";
                }
                outcome
            }
            "resume_scheduler" => {
                self.resume(serving);
                Outcome::Returned(Value::Nil)
            }
            "sleep" => {
                let level = args.first().and_then(Value::as_u64).unwrap_or(1);
                pending(text(1, "abort"), level >= 1, level)
            }
            "wake_up" => self.wake_up(serving, args),
            "release_kv_cache_memory" => self.release_kv_cache_memory(serving),
            "add_lora" | "remove_lora" | "pin_lora" | "list_loras" => self.call_adapters(method, args),
            "collective_rpc" => {
                let workers = serving.context.config.identity.tensor_parallel_size as usize;
                Outcome::Returned(Value::Array(vec![Value::Nil; workers]))
            }
            "compute_weight_checksums" => {
                let workers = serving.context.config.identity.tensor_parallel_size as usize;
                Outcome::Returned(Value::Array(vec![Value::Map(Vec::new()); workers]))
            }
            "set_weight_version" => {
                serving.egress.outputs.set_weight_version(args.first().and_then(Value::as_str).map(str::to_owned));
                Outcome::Returned(Value::Nil)
            }
            "get_weight_version" => {
                Outcome::Returned(serving.egress.outputs.weight_version().unwrap_or("default").into())
            }
            "reset_encoder_cache" => {
                serving.stepper.reset_encoder_cache();
                Outcome::Returned(Value::Nil)
            }
            // No-ops: nothing is profiled, saved or loaded, and there is no cache of multimodal inputs.
            "profile"
            | "reset_mm_cache"
            | "execute_dummy_batch"
            | "save_sharded_state"
            | "init_weight_transfer_engine"
            | "start_weight_update"
            | "start_draft_weight_update"
            | "update_weights"
            | "finish_weight_update"
            | "shutdown_weight_transfer_engine" => Outcome::Returned(Value::Nil),
            _ => Outcome::Failed(format!("'EngineCoreProc' object has no attribute '{method}'")),
        }
    }

    fn wake_up(&mut self, serving: &mut Serving, args: &[Value]) -> Outcome {
        let tags = args.first().and_then(Value::as_array);
        let tags: Option<Vec<&str>> = tags.map(|tags| tags.iter().filter_map(Value::as_str).collect());
        let is_awake = self.wake(serving, tags.as_deref());
        match serving.egress.version().rules().wake_up_result {
            WakeUpResult::Nil => Outcome::Returned(Value::Nil),
            WakeUpResult::Bool => Outcome::Returned(is_awake.into()),
        }
    }

    fn release_kv_cache_memory(&mut self, serving: &mut Serving) -> Outcome {
        if !serving.stepper.is_paused() || !serving.is_idle() {
            return Outcome::Failed("release_kv_cache_memory() requires a completed pause first".to_owned());
        }
        if self.pauses.is_asleep() {
            return Outcome::Failed("release_kv_cache_memory() requires all executor memory to be resident".to_owned());
        }
        serving.reset_prefix_cache(true);
        self.pauses.sleeps_kv_cache = true;
        Outcome::Returned(Value::Nil)
    }

    fn call_adapters(&mut self, method: &str, args: &[Value]) -> Outcome {
        let id = || args.first().and_then(Value::as_u64).ok_or_else(|| "the adapter's number is missing".to_owned());
        let result = match method {
            "list_loras" => Ok(Value::Array(self.adapters.list().into_iter().map(Value::from).collect())),
            "remove_lora" => id().map(|id| self.adapters.remove(id).into()),
            "pin_lora" => id().and_then(|id| self.adapters.pin(id)).map(|()| true.into()),
            _ => {
                let lora = args.first().map(LoraRequest::from_value);
                match lora {
                    Some(Ok(lora)) => self.adapters.load(lora.int_id).map(|()| true.into()).map_err(str::to_owned),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("the adapter is missing".to_owned()),
                }
            }
        };
        result.map_or_else(Outcome::Failed, Outcome::Returned)
    }
}
