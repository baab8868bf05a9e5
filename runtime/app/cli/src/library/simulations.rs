//! Simulations of a plan that another machine searches.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vcr_latency::tables::DATA_VARIABLE;
use vcr_scenario::{Reporter, RunOptions, Scenario};

use super::Refusal;
use crate::pack::OpenedPack;
use crate::plan::objective::Objective;
use crate::plan::simulate::{Elsewhere, Simulated, executed, options, place};

/// What all simulations of a plan share: files, objectives, and what was read from files.
pub struct Simulations {
    /// Keeps the files.
    _pack: OpenedPack,
    options: RunOptions,
    objectives: Vec<Objective>,
    base: Scenario,
    /// Folders of models, by their names in scripts.
    models: Vec<(String, String)>,
}

impl Simulations {
    /// Opens the pack of a plan; `objectives` are JSON.
    ///
    /// # Errors
    /// It is no pack, or they are no objectives.
    pub fn open(pack: &Path, objectives: &str) -> Result<Self, Refusal> {
        let objectives = serde_json::from_str(objectives).map_err(|error| {
            Refusal::input(format!("invalid objectives: expected objectives of `vcr plan`: {error}"))
        })?;
        let not_a_pack = || Refusal::input(format!("invalid pack `{}`: expected the pack of a plan", pack.display()));
        let mut pack = OpenedPack::open(pack)?.ok_or_else(not_a_pack)?;
        let mut options = options();
        pack.complete(&mut options);
        options.keeps_step_digests = false;
        // Without tables of the plan none are used, even if this machine has some.
        options.files_by_name.entry(DATA_VARIABLE.to_owned()).or_default();
        let folders = options.files_by_name.iter().filter(|(_, path)| path.join("config.json").is_file());
        let models = folders.map(|(name, path)| (name.clone(), path.display().to_string())).collect();
        Ok(Self { _pack: pack, options, objectives, base: Scenario::compile(&place(), String::new())?, models })
    }

    /// Simulates a script; returns the result as JSON, or none if it was stopped.
    ///
    /// # Errors
    /// A script that is none, or a fault.
    pub fn execute(&self, script: &str, reporter: Arc<dyn Reporter>) -> Result<Option<String>, Refusal> {
        let serve = |model: &str| format!("vllm serve {model} ");
        let moved = |script: String, (name, path): &(String, String)| script.replace(&serve(name), &serve(path));
        let script = self.models.iter().fold(script.to_owned(), moved);
        let warned = Arc::new(Warned { of: reporter, texts: Mutex::default() });
        let reporter = Arc::clone(&warned) as Arc<dyn Reporter>;
        let Some(made) = executed(script, &self.base, self.options.clone(), reporter)? else { return Ok(None) };
        let warnings = warned.texts.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        // In the words of the machine that searches.
        let places = self.options.files_by_name.iter().filter(|(_, path)| !path.as_os_str().is_empty());
        let named = |text: String| {
            places.clone().fold(text, |text, (name, path)| text.replace(&path.display().to_string(), name))
        };
        let made = made.map_err(named);
        let result = Elsewhere { simulated: Simulated::of(made, &self.objectives), warnings };
        let unwritable = |error| Refusal::input(format!("the result cannot be written: {error}"));
        serde_json::to_string(&result).map(Some).map_err(unwritable)
    }
}

/// Keeps warnings for the machine that searches.
struct Warned {
    of: Arc<dyn Reporter>,
    texts: Mutex<BTreeSet<String>>,
}

impl Reporter for Warned {
    fn warn(&self, text: &str) {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned());
    }

    fn stop(&self) -> Option<&'static str> {
        self.of.stop()
    }
}
