//! Checks of a scenario without a run: `vcr check`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::scenario::Scenario;
use crate::script::calls;
use crate::script::error::{self, ScenarioError};
use crate::vocabulary;
use crate::vocabulary::run::parameter;
use crate::{Reporter, RunOptions, SourceFile};

/// Summary of a scenario that was checked and not run.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Runs that it plans.
    pub runs: usize,
    /// Assertions that it makes.
    pub assertions: usize,
    /// Searches that it makes; each plans further runs.
    pub searches: usize,
    /// Parameters with their values.
    pub parameters: BTreeMap<String, String>,
    /// The files that it has read, as seen from the process.
    pub files_read: Vec<PathBuf>,
    /// The files and folders that it names, with their names in it.
    pub sources: Vec<SourceFile>,
    /// Parameters that it takes and does not use.
    pub unused: Vec<String>,
    /// Why the rest of the script could not be checked, if it depends on results.
    pub unchecked: Option<String>,
}

impl Scenario {
    /// Executes the script without making its runs: it reads all files, tries all guests,
    /// and plans all runs.
    ///
    /// # Errors
    /// What would end the scenario before its first run, and what can be known of the rest.
    pub fn check(&self, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Checked, ScenarioError> {
        let file = self.path().display().to_string();
        let mut context = self.context(options, reporter, None);
        context.is_check = true;
        let context = Arc::new(context);
        let mut engine = vocabulary::script_engine(&context);
        // Names of variables also where the script does not come.
        engine.set_strict_variables(true);
        engine.compile(&context.source).map_err(|error| error::from_parser(&file, &context.source, &error))?;
        engine.set_strict_variables(false);
        let mut unchecked = None;
        if let Err(error) = engine.run_ast(self.script()) {
            let error = error::from_script(&file, &error);
            if !context.state().has_read_results {
                return Err(error);
            }
            let line = error.at.map(|(line, _)| format!("from line {line} on ")).unwrap_or_default();
            unchecked = Some(format!("{line}the script depends on results, which a check has not: {}", error.message));
        }
        let refused = context.state().refusals.first().cloned();
        if let Some(refusal) = refused {
            return Err(error::from_script(&file, &refusal.error()));
        }
        if unchecked.is_none() {
            parameter::check_all_used(&context).map_err(|thrown| thrown.of_script(&file))?;
        }
        let state = context.state();
        Ok(Checked {
            runs: state.runs.len(),
            assertions: state.assertions.len(),
            searches: state.searches.len(),
            parameters: state.parameters.clone(),
            files_read: state.inputs.paths(),
            sources: state.inputs.sources(),
            unused: calls::unused_parameters(self.script()),
            unchecked,
        })
    }
}
