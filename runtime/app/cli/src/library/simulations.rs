//! Executes simulations for a plan on another machine.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vcr_latency::tables::DATA_VARIABLE;
use vcr_scenario::{Reporter, RunOptions, Scenario};

use super::Refusal;
use crate::pack::OpenedPack;
use crate::plan::objective::Objective;
use crate::plan::simulate::{RemoteResult, Simulated, executed, options, place};

/// State shared by all simulations of a plan: files, objectives, and data read from files.
pub struct Simulations {
    /// Owns the unpacked files.
    _pack: OpenedPack,
    options: RunOptions,
    objectives: Vec<Objective>,
    base: Scenario,
    /// Names of models in scripts, and their folders.
    models: Vec<(String, String)>,
}

impl Simulations {
    /// Opens the pack of a plan; `objectives` are JSON.
    ///
    /// # Errors
    /// When the file is not a pack, or the objectives are invalid.
    pub fn open(pack: &Path, objectives: &str) -> Result<Self, Refusal> {
        let objectives = serde_json::from_str(objectives).map_err(|error| {
            Refusal::input(format!("invalid objectives: expected objectives of `vcr plan`: {error}"))
        })?;
        let not_a_pack = || Refusal::input(format!("invalid pack `{}`: expected the pack of a plan", pack.display()));
        let mut pack = OpenedPack::open(pack)?.ok_or_else(not_a_pack)?;
        let mut options = options();
        pack.complete(&mut options);
        options.keeps_step_digests = false;
        // Uses no operator tables unless the plan has some, even if this machine has them.
        options.files_by_name.entry(DATA_VARIABLE.to_owned()).or_default();
        let folders = options.files_by_name.iter().filter(|(_, path)| path.join("config.json").is_file());
        let models = folders.map(|(name, path)| (name.clone(), path.display().to_string())).collect();
        Ok(Self { _pack: pack, options, objectives, base: Scenario::compile(&place(), String::new())?, models })
    }

    /// Simulates a script. Returns the result as JSON, or none if it was stopped.
    ///
    /// # Errors
    /// An invalid script, or an error of the simulation.
    pub fn execute(&self, script: &str, reporter: Arc<dyn Reporter>) -> Result<Option<String>, Refusal> {
        let serve = |model: &str| format!("vllm serve {model} ");
        let moved = |script: String, (name, path): &(String, String)| script.replace(&serve(name), &serve(path));
        let script = self.models.iter().fold(script.to_owned(), moved);
        let warned = Arc::new(Warned { of: reporter, texts: Mutex::default() });
        let reporter = Arc::clone(&warned) as Arc<dyn Reporter>;
        let Some(made) = executed(script, &self.base, self.options.clone(), reporter)? else { return Ok(None) };
        let warnings = warned.texts.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        // Replace paths of this machine by the names on the machine that runs the search.
        let places = self.options.files_by_name.iter().filter(|(_, path)| !path.as_os_str().is_empty());
        let named = |text: String| {
            places.clone().fold(text, |text, (name, path)| text.replace(&path.display().to_string(), name))
        };
        let made = made.map_err(named);
        let result = RemoteResult { simulated: Simulated::of(made, &self.objectives), warnings };
        let unwritable = |error| Refusal::input(format!("the result cannot be written: {error}"));
        serde_json::to_string(&result).map(Some).map_err(unwritable)
    }
}

/// Collects warnings, which the machine that runs the search gets with the result.
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
