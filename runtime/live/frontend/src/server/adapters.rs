//! The adapters that requests may name, and their coming and going while the server
//! runs.

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
    /// The number of the adapter that was loaded last; changes go one after the other.
    last: Mutex<u64>,
}

/// An adapter to be loaded.
#[derive(Clone, Debug)]
pub struct NewAdapter {
    /// The name that requests give as their model.
    pub name: String,
    /// Where it would be; nothing is read from there.
    pub path: String,
    /// Replace the adapter of this name.
    pub load_inplace: bool,
    /// Whether its weights belong to a mixture of experts.
    pub is_3d: bool,
}

impl Adapters {
    /// Adapters that exist from the start: names and paths.
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

    /// The adapter of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<LoraRequest> {
        let listed = self.0.listed.read().unwrap_or_else(PoisonError::into_inner);
        listed.iter().find(|adapter| adapter.name == name).cloned()
    }

    /// Loads the adapters that are listed from the start into the engines.
    pub async fn load_listed(&self, engines: &EngineClient) -> Result<(), ApiError> {
        for adapter in self.all() {
            add(engines, &adapter).await?;
        }
        Ok(())
    }

    /// Loads an adapter into the engines and lists it. Names of the model itself are
    /// `taken`.
    ///
    /// # Errors
    /// In vLLM's words.
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
        // Requests with it must not load it in place once more.
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

    /// Unloads an adapter from the engines and from the list.
    ///
    /// # Errors
    /// In vLLM's words.
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
            // It has made room for others.
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
