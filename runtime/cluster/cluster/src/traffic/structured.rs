//! Structured outputs: which requests have them, and how long their grammars are compiled.

use vcr_base::random::{Distribution, Stream};

const NS_PER_MS: f64 = 1e6;

/// Structured outputs of the requests of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct StructuredOutputs {
    /// The share of requests that have them, from 0 to 1.
    pub share: f64,
    /// Milliseconds from a request's arrival at an engine until its grammar is compiled.
    pub compile_ms: Distribution,
    /// Of these the share whose grammar cannot be compiled, from 0 to 1.
    pub failing_share: f64,
}

/// The compilation of one request's grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrammarCompilation {
    pub(crate) duration_ns: u64,
    pub(crate) succeeds: bool,
}

impl StructuredOutputs {
    /// The compilation of a request's grammar, if it has one; `request_seed` is the same for all attempts at a request.
    pub(crate) fn draw(&self, request_seed: u64) -> Option<GrammarCompilation> {
        let mut stream = Stream::new(request_seed, "structured outputs");
        // All is drawn in any case, so that a share changes nothing but which requests have a grammar.
        let is_one = stream.unit() < self.share;
        let succeeds = stream.unit() >= self.failing_share;
        let duration_ns = (self.compile_ms.draw(&mut stream).max(0.0) * NS_PER_MS).round() as u64;
        is_one.then_some(GrammarCompilation { duration_ns, succeeds })
    }

    /// Every problem of it.
    pub(crate) fn check(&self, problem: &mut dyn FnMut(&str)) {
        for (name, share) in [("share", self.share), ("fails", self.failing_share)] {
            if !(0.0..=1.0).contains(&share) {
                problem(&format!("invalid `{name}` of `structured_outputs`: expected 0 to 1"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_changes_nothing_but_which_requests_have_a_grammar() {
        let of_share = |share: f64| StructuredOutputs {
            share,
            compile_ms: Distribution::Uniform { min: 1.0, max: 9.0 },
            failing_share: 0.25,
        };
        let draw = |share: f64| (0..1_000).map(|seed| of_share(share).draw(seed)).collect::<Vec<_>>();
        let (all, half) = (draw(1.0), draw(0.5));
        assert!(all.iter().all(Option::is_some) && draw(0.0).iter().all(Option::is_none));
        let common = all.iter().zip(&half).filter(|(_, some)| some.is_some());
        assert!(common.clone().all(|(one, other)| one == other));
        assert!((450..550).contains(&common.count()));
        let failing = all.iter().flatten().filter(|compilation| !compilation.succeeds).count();
        assert!((200..300).contains(&failing), "{failing}");
        assert!(all.iter().flatten().all(|one| (1_000_000..=9_000_000).contains(&one.duration_ns)));
    }
}
