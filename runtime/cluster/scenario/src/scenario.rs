//! A scenario that is read and compiled once, and can be executed many times.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rhai::AST;
use sha2::{Digest, Sha256};
use vcr_base::input::MAX_SCRIPT_BYTES;
use vcr_base::output::OutputError;
use vcr_report::Source;

use crate::assertion::draws::Watched;
use crate::assertion::precheck;
use crate::results::outputs::Outputs;
use crate::results::provenance;
use crate::script::calls::{self, Parameters};
use crate::script::context::Context;
use crate::script::error::{self, Blame, ScenarioError};
use crate::script::loaded::Loaded;
use crate::script::stack::with_large_stack;
use crate::vocabulary;
use crate::vocabulary::run::parameter;
use crate::{Outcome, Partial, Reporter, RunOptions, Silent};

/// A compiled script. Executions may be parallel. They share the guests, traces and operator tables that the script
/// names.
pub struct Scenario {
    path: PathBuf,
    source: String,
    script: AST,
    /// Statistics that draws must compute for the script's assertions.
    watched: Vec<Watched>,
    loaded: Arc<Loaded>,
    /// Set when a check has found that the script uses no unknown variables.
    pub(crate) has_known_names: OnceLock<()>,
}

impl Scenario {
    /// Reads and compiles the script at `path`, and checks everything that needs no run.
    ///
    /// # Errors
    /// When the script cannot be read or compiled, or has an invalid assertion.
    pub fn open(path: &Path) -> Result<Self, ScenarioError> {
        let source = vcr_base::input::read_text(path, MAX_SCRIPT_BYTES)
            .map_err(|error| input(path, format!("cannot read the scenario: {error}"), None))?;
        Self::compile(path, source)
    }

    /// Like [`Scenario::open`], for a script in memory. Results and errors call it `path`, which is also the base
    /// of its relative paths. The file need not exist.
    ///
    /// # Errors
    /// If the script cannot be compiled, or has an invalid assertion.
    pub fn compile(path: &Path, source: String) -> Result<Self, ScenarioError> {
        // Some editors write a byte order mark at the beginning of files.
        let source = source.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(source);
        let file = path.display().to_string();
        let context = Context::new(source, folder(path), RunOptions::default(), Arc::new(Silent), None);
        let context = Arc::new(context);
        let engine = vocabulary::script_engine(&context);
        let compiled = engine.compile(&context.source);
        let script = compiled.map_err(|error| error::from_parser(&file, &context.source, &error))?;
        let watched = precheck::check(&script).map_err(|error| error::from_script(&file, &error))?;
        let source = context.source.clone();
        Ok(Self {
            path: path.to_owned(),
            source,
            script,
            watched,
            loaded: Arc::default(),
            has_known_names: OnceLock::new(),
        })
    }

    /// Makes the scenario share loaded guests, traces and operator tables with `other`.
    #[must_use]
    pub fn sharing(mut self, other: &Self) -> Self {
        self.loaded = Arc::clone(&other.loaded);
        self
    }

    /// Path of the script.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Text of the script.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The parameters that the script reads.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        calls::parameters(&self.script)
    }

    /// Executes the scenario.
    pub fn run(&self, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Outcome, ScenarioError> {
        let unwritable = |error: &OutputError| input(&self.path, error.to_string(), error.hint().map(str::to_owned));
        let outputs =
            Outputs::create(&self.path, &options).map_err(|error| unwritable(&self.own_input(error, &options)))?;
        let context = Arc::new(self.context(options, reporter, outputs));
        let executed = self.execute(&context);
        context.reporter.has_read(&context.state().inputs.sources());
        let partial = match executed {
            Ok(partial) => partial,
            Err(error) => {
                self.keep_failed(&context, &error);
                return Err(error);
            }
        };
        let mut outcome = self.outcome(&context, partial);
        if outcome.runs.is_empty() && outcome.partial.is_none() {
            let hint = "call run(#{ cluster: ..., workloads: [ ... ] })".to_owned();
            return Err(input(&self.path, "the scenario made no run".to_owned(), Some(hint)));
        }
        if outcome.partial.is_none() {
            for judge in &context.options.judges {
                let found = judge.judge(&outcome);
                outcome.passed &= found.iter().all(|check| check.passed);
                outcome.assertions.extend(found);
            }
        }
        self.write(&context, &mut outcome)?;
        Ok(outcome)
    }

    /// The error for an output that exists: another one if the script reads the file, which `--force` does not replace.
    fn own_input(&self, error: OutputError, options: &RunOptions) -> OutputError {
        let OutputError::Exists { path } = &error else { return error };
        let mut rule = vcr_base::output::Outputs::new(false);
        let checked = self.check(options.clone(), Arc::new(Silent));
        let are_known = checked.is_ok_and(|checked| checked.files_read.iter().all(|read| rule.reads(read).is_ok()));
        match rule.check(path) {
            Err(own @ OutputError::IsInput { .. }) if are_known => own,
            _ => error,
        }
    }

    /// Writes the results so far after an error, if a part of them was measured in real time and so cannot be
    /// repeated. If a guest or engine failed, writes only the verdict files, which replace those of an earlier run.
    fn keep_failed(&self, context: &Arc<Context>, error: &ScenarioError) {
        let is_measured = context.state().runs.iter().any(|run| run.target.is_some());
        if !is_measured && error.blame != Blame::Fault {
            return;
        }
        if !is_measured && let Some(outputs) = &mut context.state().outputs {
            outputs.keep_verdicts_only();
        }
        let partial = Partial { stopped_by: "error", error: Some(error.to_string()) };
        let mut outcome = self.outcome(context, Some(partial));
        match self.write(context, &mut outcome) {
            Ok(()) if outcome.files.is_empty() => {}
            Ok(()) if is_measured => {
                context.reporter.warn("measurements before the error were written, marked partial");
            }
            Ok(()) => context.reporter.warn(&format!("the error was written to {}", outcome.files.join(", "))),
            Err(error) => context.reporter.warn(&format!("the results before the error were not written: {error}")),
        }
    }

    /// Writes the files of an outcome, if any are requested.
    fn write(&self, context: &Arc<Context>, outcome: &mut Outcome) -> Result<(), ScenarioError> {
        let unwritable = |error: &OutputError| input(&self.path, error.to_string(), error.hint().map(str::to_owned));
        let outputs = context.state().outputs.take();
        if context.options.digests_inputs || outputs.is_some() {
            let digested = context.state().inputs.digest();
            let undigested = |error| input(&self.path, format!("cannot digest an input: {error}"), None);
            outcome.inputs = match digested {
                // The execution may have failed because a file cannot be read, so this error would repeat it.
                Err(_) if outcome.partial.is_some() => Vec::new(),
                digested => digested.map_err(undigested)?,
            };
        }
        let has_failed = outcome.partial.as_ref().is_some_and(|partial| partial.error.is_some());
        if let Some(outputs) = outputs.filter(|_| has_failed || !outcome.runs.is_empty()) {
            let source = Source { name: outcome.scenario.clone(), text: self.source.clone() };
            let written = outputs.finish(&outcome.runs, outcome, source).map_err(|error| unwritable(&error))?;
            if !written.left_out.is_empty() {
                let (names, limit) = (written.left_out.join(" and "), context.options.steps_limit_bytes / 1_000_000);
                context.reporter.warn(&format!(
                    "{names} would be larger than {limit} MB and were not written; \
                     --files report,requests,steps,trace writes them whatever their size"
                ));
            }
            outcome.files = written.names;
        }
        Ok(())
    }

    pub(crate) fn script(&self) -> &AST {
        &self.script
    }

    /// The initial state of an execution.
    pub(crate) fn context(
        &self,
        options: RunOptions,
        reporter: Arc<dyn Reporter>,
        outputs: Option<Outputs>,
    ) -> Context {
        let mut context = Context::new(self.source.clone(), folder(&self.path), options, reporter, outputs);
        context.loaded = Arc::clone(&self.loaded);
        let is_called = |name| calls::calls(&self.script, name);
        context.asks_series = context.options.keeps_series || is_called("series") || is_called("saturation");
        context
    }

    /// Executes the script. Returns the reason for an early stop, if any.
    fn execute(&self, context: &Arc<Context>) -> Result<Option<Partial>, ScenarioError> {
        with_large_stack(|| self.execute_here(context))
    }

    fn execute_here(&self, context: &Arc<Context>) -> Result<Option<Partial>, ScenarioError> {
        let file = self.path.display().to_string();
        let engine = vocabulary::script_engine(context);
        context.state().watched.clone_from(&self.watched);
        if let Err(error) = engine.run_ast(&self.script) {
            return match context.reporter.stop() {
                Some(stopped_by) if error::is_stopped(&error) => Ok(Some(Partial { stopped_by, error: None })),
                _ => Err(error::from_script(&file, &error)),
            };
        }
        // A guest may have refused its configuration although no option uses the guest.
        let refused = context.state().refusals.first().cloned();
        if let Some(refusal) = refused {
            return Err(error::from_script(&file, &refusal.error()));
        }
        let unused = parameter::check_all_used(context);
        unused.map(|()| None).map_err(|thrown| thrown.of_script(&file))
    }

    fn outcome(&self, context: &Context, partial: Option<Partial>) -> Outcome {
        let state = context.state();
        let mut hash = Sha256::new();
        for report in &state.runs {
            hash.update(report.name.as_bytes());
            hash.update(report.fingerprint.as_bytes());
        }
        Outcome {
            schema_version: 2,
            vcr_version: env!("CARGO_PKG_VERSION"),
            scenario: self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            scenario_sha256: provenance::sha256_of(self.source.as_bytes()),
            vllm_rules: state.inputs.vllm_rules(),
            inputs: Vec::new(),
            claim: claim(&self.source),
            parameters: state.parameters.clone(),
            passed: partial.is_none() && state.assertions.iter().all(|check| check.passed),
            partial,
            assertions: state.assertions.clone(),
            searches: state.searches.clone(),
            comparisons: state.comparisons.clone(),
            gates: state.gates.clone(),
            fingerprint: hex::encode(hash.finalize()),
            guests: context.recorder.reports(),
            runs: state.runs.clone(),
            files: Vec::new(),
            files_read: state.inputs.paths(),
        }
    }
}

/// The base folder of a script's relative paths. For a downloaded script, this is the folder of its URL.
fn folder(path: &Path) -> PathBuf {
    let path = vcr_base::input::remote::origin(path).unwrap_or_else(|| path.to_owned());
    path.parent().unwrap_or(Path::new("")).to_owned()
}

fn input(path: &Path, message: String, hint: Option<String>) -> ScenarioError {
    ScenarioError { blame: Blame::Input, file: path.display().to_string(), at: None, message, hint }
}

/// The leading `//!` comment of a script, as one text.
fn claim(source: &str) -> Option<String> {
    let lines: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let text = lines.join(" ").trim().to_owned();
    (!text.is_empty()).then_some(text)
}
