//! Checks of scenarios without runs: `vcr check`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::scenario::Scenario;
use crate::script::calls;
use crate::script::error::{self, ScenarioError};
use crate::script::stack::with_large_stack;
use crate::vocabulary;
use crate::vocabulary::run::parameter;
use crate::{Reporter, RunOptions, SourceFile};

/// Summary of a scenario that was checked without running it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Number of runs that the scenario plans.
    pub runs: usize,
    /// Number of assertions.
    pub assertions: usize,
    /// Number of searches; each plans further runs.
    pub searches: usize,
    /// Parameters with their values.
    pub parameters: BTreeMap<String, String>,
    /// The files that the script has read, by their paths.
    pub files_read: Vec<PathBuf>,
    /// The files and folders that the script names.
    pub sources: Vec<SourceFile>,
    /// Parameters that the script reads but does not use.
    pub unused: Vec<String>,
    /// The reason why the rest of the script could not be checked: it depends on results.
    pub unchecked: Option<String>,
}

impl Scenario {
    /// Executes the script without its runs. It reads all files, tries all guests, and plans all runs.
    ///
    /// # Errors
    /// The error that would end the scenario before its first run, and all errors found in the rest of the script.
    pub fn check(&self, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Checked, ScenarioError> {
        with_large_stack(|| self.check_here(options, reporter))
    }

    fn check_here(&self, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Checked, ScenarioError> {
        let file = self.path().display().to_string();
        let mut context = self.context(options, reporter, None);
        context.is_check = true;
        let context = Arc::new(context);
        let mut engine = vocabulary::script_engine(&context);
        // This also checks variable names in unreachable parts. Once is enough, because options do not affect them.
        if self.has_known_names.get().is_none() {
            engine.set_strict_variables(true);
            engine.compile(&context.source).map_err(|error| error::from_parser(&file, &context.source, &error))?;
            engine.set_strict_variables(false);
            self.has_known_names.get_or_init(|| ());
        }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Silent;

    /// Closures that capture each other, deeper than a default stack can free.
    #[test]
    fn nested_values_are_freed() {
        let check = |source: &str| {
            let scenario = Scenario::compile(Path::new("a.rhai"), source.to_owned()).expect("it is a script");
            scenario.check(RunOptions::default(), Arc::new(Silent)).map(|checked| checked.runs)
        };
        assert_eq!(check("let f = |x| x; for i in 0..300000 { let g = f; f = |x| g; }").ok(), Some(0));
        // A closure that is thrown is freed as well.
        assert!(check("let f = |x| x; for i in 0..300000 { let g = f; f = |x| g; } throw f").is_err());
    }

    /// What a script prints after a run may be placeholders.
    #[test]
    fn prints_end_with_the_first_run() {
        #[derive(Default)]
        struct Printed(std::sync::Mutex<Vec<String>>);
        impl Reporter for Printed {
            fn print(&self, text: &str) {
                self.0.lock().expect("no panic").push(text.to_owned());
            }
        }
        let source = r#"
            print("before");
            let engines = pool(#{ engine: engine(#{ num_gpu_blocks: 100 }), latency: fixed(#{ step: "1ms" }) });
            let load = constant(#{ rate: "5/s", count: 2, prompt_tokens: 10, output_tokens: 2 });
            let most = find_max("rate", 1, 4, |rate| {
                expect(run(#{ cluster: cluster(#{ engines: engines }), workloads: [load] }), "ttft", "p95 < 1s");
            });
            print(most.value);
        "#;
        let scenario = Scenario::compile(Path::new("a.rhai"), source.to_owned()).expect("it is a script");
        let printed = Arc::new(Printed::default());
        scenario.check(RunOptions::default(), Arc::clone(&printed) as Arc<dyn Reporter>).expect("it is a scenario");
        assert_eq!(*printed.0.lock().expect("no panic"), ["before"]);
    }

    /// In unreachable code, only the check of names sees it.
    #[test]
    fn each_check_refuses_unknown_variables_and_only_them() {
        let check = |source: &str| {
            let scenario = Scenario::compile(Path::new("a.rhai"), source.to_owned()).expect("it is a script");
            (0..2).map(|_| scenario.check(RunOptions::default(), Arc::new(Silent)).err()).collect::<Vec<_>>()
        };
        let refused = check("let known = 1; if false { unknown }");
        for error in &refused {
            assert!(error.as_ref().is_some_and(|error| error.message.contains("unknown")), "{error:?}");
        }
        assert!(check("let known = 1; if false { known }").iter().all(Option::is_none));
    }
}
