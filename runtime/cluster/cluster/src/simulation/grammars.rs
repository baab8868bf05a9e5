//! Structured outputs: grammars that are compiled while their requests wait in an engine.

use vcr_core::{Compilation, RejectReason};

use crate::event::Event;
use crate::ledger::record::Outcome;
use crate::observe::Observer;
use crate::simulation::Simulation;
use crate::traffic::GrammarCompilation;

impl<O: Observer> Simulation<'_, O> {
    /// The compilation of a request's grammar, if it has structured outputs.
    pub(super) fn compilation_of(&self, tag: u64) -> Option<GrammarCompilation> {
        let workload = self.ledger.record(tag).workload;
        let structured = self.facts.config.workloads[workload as usize].structured.as_ref()?;
        structured.draw(self.traffic.output_seeds()[tag as usize])
    }

    /// A request with structured outputs has come to a worker, which has its grammar after a time.
    pub(super) fn begin_compilation(&mut self, tag: u64, worker: u32, compilation: GrammarCompilation) {
        let incarnation = self.fleet.worker(worker).incarnation();
        let compiled = Event::GrammarCompiled { tag, worker, incarnation, succeeds: compilation.succeeds };
        self.events.push(self.clock.now_ns().saturating_add(compilation.duration_ns), compiled);
    }

    /// The compilation of a request's grammar has ended, unless the worker was restarted since.
    pub(super) fn end_compilation(&mut self, tag: u64, worker: u32, incarnation: u32, succeeds: bool) {
        if self.fleet.worker(worker).incarnation() != incarnation {
            return;
        }
        let compilation = if succeeds { Compilation::Succeeded } else { Compilation::Failed };
        if self.fleet.worker_mut(worker).end_compilation(tag, compilation) {
            self.observation.compiled(worker, tag, compilation);
            self.fleet.note_change(worker);
        }
    }

    /// A worker with nothing to compute has come to requests without a grammar: they end at once.
    pub(super) fn end_without_grammars(&mut self, index: u32) {
        for tag in self.fleet.worker_mut(index).end_without_grammars() {
            self.observation.failed(index, tag);
            self.reject_without_grammar(tag);
        }
    }

    /// A request's engine has ended it for want of a grammar.
    pub(super) fn reject_without_grammar(&mut self, tag: u64) {
        self.end(tag, Outcome::Rejected(RejectReason::GrammarFailed));
    }
}
