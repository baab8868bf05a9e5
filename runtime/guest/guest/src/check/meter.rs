//! Measures the cost of calls.

use crate::check::report::{CallCost, FailedCall, Used};
use crate::error::CallFault;
use crate::latest::{Chosen, Metered};
use crate::limits::Budget;

pub(super) struct Meter<'a> {
    /// A monotonic clock in nanoseconds. It is an argument, because this crate must not read clocks.
    clock_ns: &'a dyn Fn() -> u64,
    pub(super) memory_bytes: usize,
    pub(super) failed_call: Option<FailedCall>,
    functions: Vec<Function>,
}

/// Sums over the calls of one function.
struct Function {
    name: &'static str,
    calls: u64,
    items: u64,
    fuel: u64,
    /// The time of each call, for the median: a mean would depend on the machine's load.
    ns: Vec<u64>,
    fuel_most: Used,
    answer_bytes_most: Used,
}

impl<'a> Meter<'a> {
    pub(super) fn new(clock_ns: &'a dyn Fn() -> u64) -> Self {
        Self { clock_ns, memory_bytes: 0, failed_call: None, functions: Vec::new() }
    }

    /// Calls the function `name` for `items` items, and measures the call.
    pub(super) fn call<I: Metered + ?Sized, R: Answer>(
        &mut self,
        name: &'static str,
        items: usize,
        budget: Budget,
        instance: &mut I,
        call: impl FnOnce(&mut I, Budget) -> Result<R, CallFault>,
    ) -> Result<R, CallFault> {
        let start_ns = (self.clock_ns)();
        let answer = call(instance, budget);
        let ns = (self.clock_ns)().saturating_sub(start_ns);
        self.memory_bytes = self.memory_bytes.max(instance.memory_bytes());
        let fuel = budget.fuel.saturating_sub(instance.fuel_left());
        let answer_bytes = answer.as_ref().map_or(0, Answer::bytes) as u64;

        let function = self.function(name);
        function.calls += 1;
        function.items += items as u64;
        function.fuel += fuel;
        function.ns.push(ns);
        function.fuel_most.keep_larger(Used { used: fuel, limit: budget.fuel });
        function.answer_bytes_most.keep_larger(Used { used: answer_bytes, limit: budget.answer_bytes as u64 });
        answer
    }

    /// Records the input of a call that failed or gave an invalid answer.
    pub(super) fn explained<R>(
        &mut self,
        function: &'static str,
        outcome: Result<R, CallFault>,
        input: impl FnOnce() -> serde_json::Value,
    ) -> Result<R, CallFault> {
        if outcome.is_err() {
            self.failed_call = Some(FailedCall { function, input: input() });
        }
        outcome
    }

    fn function(&mut self, name: &'static str) -> &mut Function {
        let known = self.functions.iter().position(|function| function.name == name);
        let index = known.unwrap_or_else(|| {
            let (fuel_most, answer_bytes_most) = (Used::default(), Used::default());
            self.functions.push(Function {
                name,
                calls: 0,
                items: 0,
                fuel: 0,
                ns: Vec::new(),
                fuel_most,
                answer_bytes_most,
            });
            self.functions.len() - 1
        });
        &mut self.functions[index]
    }

    /// Costs, sorted by the name of the function.
    pub(super) fn costs(&self) -> Vec<CallCost> {
        let mut costs: Vec<CallCost> = self
            .functions
            .iter()
            .map(|function| CallCost {
                function: function.name,
                calls: function.calls,
                items: function.items,
                fuel_most: function.fuel_most,
                fuel_mean: function.fuel as f64 / function.calls as f64,
                answer_bytes_most: function.answer_bytes_most,
                median_ns: median(&function.ns),
            })
            .collect();
        costs.sort_by_key(|cost| cost.function);
        costs
    }
}

fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    let middle = values.len() / 2;
    if values.is_empty() { 0 } else { *values.select_nth_unstable(middle).1 }
}

/// An answer whose size is limited.
pub(super) trait Answer {
    /// Number of bytes that the host copies.
    fn bytes(&self) -> usize;
}

impl<T> Answer for Vec<T> {
    fn bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

/// Numbers are returned by value, not copied.
impl Answer for f64 {
    fn bytes(&self) -> usize {
        0
    }
}

impl Answer for u32 {
    fn bytes(&self) -> usize {
        0
    }
}

impl Answer for Chosen {
    fn bytes(&self) -> usize {
        0
    }
}
