//! Calls of the engines' utility functions. Each call goes to all engines.

use futures_util::future::try_join_all;
use vcr_wire::{LoraLayout, LoraRequest, Value};

use super::{EngineClient, EngineError};

impl EngineClient {
    /// Calls a function of all engines. Returns the results by rank.
    pub async fn call_all(&self, method: &str, args: &[Value]) -> Result<Vec<Value>, EngineError> {
        let calls = self.ranks().iter().map(|rank| rank.call(method, args.to_vec()));
        let answers = calls.map(|call| async { call.await.unwrap_or(Err(EngineError::Dead)) });
        try_join_all(answers.collect::<Vec<_>>()).await
    }

    async fn all_true(&self, method: &str, args: &[Value]) -> Result<bool, EngineError> {
        let answers = self.call_all(method, args).await?;
        Ok(answers.iter().all(|answer| answer.as_bool().unwrap_or(false)))
    }

    /// Puts all engines to sleep. `mode` decides what happens to running requests first.
    pub async fn sleep(&self, level: u32, mode: &str) -> Result<(), EngineError> {
        self.call_all("sleep", &[u64::from(level).into(), mode.into()]).await?;
        self.observe_sleep(Some(level));
        Ok(())
    }

    /// Wakes all engines, or the parts named by `tags`. Returns whether they are fully awake.
    pub async fn wake_up(&self, tags: Option<&[String]>) -> Result<bool, EngineError> {
        let tags = tags.map_or(Value::Nil, |tags| Value::Array(tags.iter().map(|tag| tag.as_str().into()).collect()));
        let is_awake = self.all_true("wake_up", &[tags]).await?;
        if is_awake {
            self.observe_sleep(None);
        }
        Ok(is_awake)
    }

    /// Whether the engines sleep.
    pub async fn is_sleeping(&self) -> Result<bool, EngineError> {
        self.all_true("is_sleeping", &[]).await
    }

    /// Whether the engines are paused.
    pub async fn is_paused(&self) -> Result<bool, EngineError> {
        self.all_true("is_scheduler_paused", &[]).await
    }

    /// Pauses all engines. `mode` is vLLM's `abort`, `wait` or `keep`.
    pub async fn pause(&self, mode: &str, clear_cache: bool) -> Result<(), EngineError> {
        self.call_all("pause_generation", &[mode.into(), clear_cache.into()]).await.map(drop)
    }

    /// Resumes all engines.
    pub async fn resume(&self) -> Result<(), EngineError> {
        self.call_all("resume_scheduler", &[]).await.map(drop)
    }

    /// Resets the prefix cache of all engines. Returns whether all succeeded.
    pub async fn reset_prefix_cache(&self, running: bool, external: bool) -> Result<bool, EngineError> {
        self.all_true("reset_prefix_cache", &[running.into(), external.into()]).await
    }

    /// Loads an adapter into all engines.
    ///
    /// # Errors
    /// When an engine refuses the adapter, for example without a free slot, or is lost.
    pub async fn add_lora(&self, adapter: &LoraRequest) -> Result<bool, EngineError> {
        let LoraRequest { name, int_id, path, base_model_name, load_inplace, is_3d, .. } = adapter;
        debug_assert_eq!(adapter.layout, LoraLayout::Six, "0.33 has six elements");
        let base = base_model_name.as_deref().map_or(Value::Nil, Value::from);
        let value = Value::Array(vec![
            name.as_str().into(),
            (*int_id).into(),
            path.as_str().into(),
            base,
            (*load_inplace).into(),
            (*is_3d).into(),
        ]);
        self.all_true("add_lora", &[value]).await
    }

    /// Unloads an adapter from all engines.
    pub async fn remove_lora(&self, int_id: u64) -> Result<bool, EngineError> {
        self.all_true("remove_lora", &[int_id.into()]).await
    }
}
