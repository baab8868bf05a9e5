//! The LoRA adapters that requests can select. They can be loaded and unloaded while the server runs.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Mutex;
use vcr_wire::LoraRequest;

use super::error::ApiError;
use crate::engine::EngineClient;

/// Adapters in the order of loading. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Adapters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    listed: RwLock<Vec<LoraRequest>>,
    /// The id of the adapter that was loaded last. The lock makes changes happen one after the other.
    last: Mutex<u64>,
}

/// An adapter to load.
#[derive(Clone, Debug)]
pub struct NewAdapter {
    /// The name by which requests select the adapter.
    pub name: String,
    /// The adapter's path. Nothing is read from it.
    pub path: String,
    /// Whether to replace an adapter with the same name.
    pub load_inplace: bool,
    /// Whether the weights belong to a mixture-of-experts model.
    pub is_3d: bool,
}

impl Adapters {
    /// Creates adapters from names and paths, which exist from the start.
    #[must_use]
    pub fn new(modules: impl IntoIterator<Item = (String, String)>) -> Self {
        let adapter = |((name, path), int_id)| LoraRequest { name, int_id, path, ..LoraRequest::default() };
        let listed: Vec<_> = modules.into_iter().zip(1..).map(adapter).collect();
        let last = listed.len() as u64;
        Self(Arc::new(Inner { listed: RwLock::new(listed), last: Mutex::new(last) }))
    }

    /// All adapters in the order of loading.
    #[must_use]
    pub fn all(&self) -> Vec<LoraRequest> {
        self.0.listed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapter with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<LoraRequest> {
        let listed = self.0.listed.read().unwrap_or_else(PoisonError::into_inner);
        listed.iter().find(|adapter| adapter.name == name).cloned()
    }

    /// Loads the listed adapters into the engines.
    pub async fn load_listed(&self, engines: &EngineClient) -> Result<(), ApiError> {
        for adapter in self.all() {
            add(engines, &adapter).await?;
        }
        Ok(())
    }

    /// Loads an adapter into the engines and lists it. `taken` contains the names of the model.
    ///
    /// # Errors
    /// When vLLM would refuse to load the adapter. Errors have vLLM's texts.
    pub async fn load(&self, engines: &EngineClient, taken: &[String], new: NewAdapter) -> Result<(), ApiError> {
        ensure_enabled(engines)?;
        for (field, value) in [("lora_name", &new.name), ("lora_path", &new.path)] {
            if value.trim().is_empty() {
                return Err(ApiError::invalid(format!("{field} must not be empty")));
            }
        }
        let mut last = self.0.last.lock().await;
        let refused =
            |what: &str| Err(ApiError::invalid_param("lora_name", format!("LoRA adapter `{}` {what}", new.name)));
        if taken.contains(&new.name) {
            return refused("conflicts with a served base model");
        }
        let before = self.get(&new.name);
        if before.is_some() && !new.load_inplace {
            return refused("is already loaded. If you want to load the adapter in place, set 'load_inplace' to true.");
        }
        let int_id = before.map_or_else(
            || {
                *last += 1;
                *last
            },
            |adapter| adapter.int_id,
        );
        let NewAdapter { name, path, load_inplace, is_3d } = new;
        let adapter = LoraRequest { name, int_id, path, load_inplace, is_3d, ..LoraRequest::default() };
        add(engines, &adapter).await?;
        // Requests that use the adapter must not load it again.
        self.list(LoraRequest { load_inplace: false, ..adapter });
        Ok(())
    }

    fn list(&self, adapter: LoraRequest) {
        let mut listed = self.0.listed.write().unwrap_or_else(PoisonError::into_inner);
        match listed.iter_mut().find(|other| other.name == adapter.name) {
            Some(before) => *before = adapter,
            None => listed.push(adapter),
        }
    }

    /// Unloads an adapter from the engines and removes it from the list.
    ///
    /// # Errors
    /// When vLLM would refuse to unload the adapter. Errors have vLLM's texts.
    pub async fn unload(&self, engines: &EngineClient, name: &str, int_id: Option<u64>) -> Result<(), ApiError> {
        ensure_enabled(engines)?;
        let _last = self.0.last.lock().await;
        let adapter = self.get(name).ok_or_else(|| ApiError::unknown_model(name))?;
        let expected = adapter.int_id;
        if let Some(actual) = int_id.filter(|actual| *actual != expected) {
            let message =
                format!("requested lora_int_id {actual} does not match loaded adapter `{name}` with id {expected}");
            return Err(ApiError::invalid_param("lora_int_id", message));
        }
        let removed = engines.remove_lora(expected).await;
        let removed =
            removed.map_err(|error| ApiError::internal(format!("failed to unload LoRA adapter `{name}`: {error}")))?;
        if !removed {
            // The engine has already evicted it.
            return Err(ApiError::internal(format!(
                "engine rejected removal of LoRA adapter `{name}` with id {expected}"
            )));
        }
        let mut listed = self.0.listed.write().unwrap_or_else(PoisonError::into_inner);
        listed.retain(|other| other.int_id != expected);
        Ok(())
    }
}

fn ensure_enabled(engines: &EngineClient) -> Result<(), ApiError> {
    if engines.settings().is_some_and(|settings| settings.supports_lora) {
        return Ok(());
    }
    Err(ApiError::invalid("engine was not started with LoRA enabled"))
}

async fn add(engines: &EngineClient, adapter: &LoraRequest) -> Result<(), ApiError> {
    let name = &adapter.name;
    match engines.add_lora(adapter).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(ApiError::internal(format!("one or more engine ranks rejected LoRA adapter `{name}`"))),
        Err(error) => Err(ApiError::internal(format!("failed to load LoRA adapter `{name}`: {error}"))),
    }
}
