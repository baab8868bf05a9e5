//! Dependencies between requests, which must not form cycles.

use crate::trace::{Dependency, ItemRange, Trace, Trigger};

impl Trace {
    /// The same requests, but a turn waits for the previous turn through an explicit dependency.
    #[must_use]
    pub fn with_free_turns(&self) -> Self {
        if self.has_free_turns {
            return self.clone();
        }
        let mut freed = Self { has_free_turns: true, recorded_ns: vec![None; self.requests.len()], ..self.clone() };
        for (index, request) in (0..).zip(&self.requests) {
            let Some(next) = request.next_turn else { continue };
            let delay_ns = self.requests[next as usize].delay_ns;
            let start = freed.dependencies.len() as u32;
            freed.dependencies.push(Dependency { request: index, trigger: Trigger::Completion, delay_ns });
            freed.requests[index as usize].next_turn = None;
            freed.requests[next as usize].dependencies = ItemRange { start, len: 1 };
        }
        freed
    }
}

#[derive(Debug)]
pub(crate) struct Cycle {
    /// Indices of the requests. Each request waits for the next, and the last one for the first.
    pub(crate) requests: Vec<u32>,
}

impl Cycle {
    /// Names of the requests in the cycle. The first name is repeated at the end.
    pub(crate) fn path(&self, trace: &Trace) -> String {
        let name = |index: &u32| {
            let request = &trace.requests[*index as usize];
            request.request_id.as_deref().map_or_else(|| format!("#{index}"), str::to_owned)
        };
        let names: Vec<String> = self.requests.iter().chain(self.requests.first()).map(name).collect();
        names.join(" -> ")
    }
}

/// Sets the dependencies of a trace, given as (request, dependency) in any order.
pub(crate) fn attach(trace: &mut Trace, mut edges: Vec<(u32, Dependency)>) -> Result<(), Cycle> {
    // The sort is stable, so that the order within a request stays.
    edges.sort_by_key(|(request, _)| *request);
    trace.dependencies.reserve_exact(edges.len());
    for (request, dependency) in edges {
        let range = &mut trace.requests[request as usize].dependencies;
        if range.len == 0 {
            *range = ItemRange { start: trace.dependencies.len() as u32, len: 0 };
        }
        range.len += 1;
        trace.dependencies.push(dependency);
    }
    find_cycle(trace).map_or(Ok(()), Err)
}

/// Removes requests that wait for nothing, until no request or only a cycle is left.
fn find_cycle(trace: &Trace) -> Option<Cycle> {
    if trace.dependencies.is_empty() {
        return None;
    }
    let count = trace.requests.len();
    let mut num_waits: Vec<u32> = trace.requests.iter().map(|request| request.dependencies.len).collect();
    let mut first_waiter = vec![0u32; count + 1];
    for dependency in &trace.dependencies {
        first_waiter[dependency.request as usize + 1] += 1;
    }
    for index in 0..count {
        first_waiter[index + 1] += first_waiter[index];
    }
    let mut free = first_waiter.clone();
    let mut waiters = vec![0u32; trace.dependencies.len()];
    for (index, request) in trace.requests.iter().enumerate() {
        for dependency in trace.dependencies(request) {
            let slot = &mut free[dependency.request as usize];
            waiters[*slot as usize] = index as u32;
            *slot += 1;
        }
    }
    let mut ready: Vec<u32> = (0..count as u32).filter(|index| num_waits[*index as usize] == 0).collect();
    let mut left = count;
    while let Some(index) = ready.pop() {
        left -= 1;
        let range = first_waiter[index as usize] as usize..first_waiter[index as usize + 1] as usize;
        for &waiter in &waiters[range] {
            num_waits[waiter as usize] -= 1;
            if num_waits[waiter as usize] == 0 {
                ready.push(waiter);
            }
        }
    }
    (left > 0).then(|| Cycle { requests: walk_cycle(trace, &num_waits) })
}

fn walk_cycle(trace: &Trace, num_waits: &[u32]) -> Vec<u32> {
    let mut position = vec![None; num_waits.len()];
    let mut path = Vec::new();
    let first = num_waits.iter().position(|waits| *waits > 0).unwrap_or(0);
    let mut index = first as u32;
    loop {
        if let Some(start) = position[index as usize] {
            return path.split_off(start);
        }
        position[index as usize] = Some(path.len());
        path.push(index);
        let request = &trace.requests[index as usize];
        // A request that still waits has a dependency that also still waits.
        let next = trace.dependencies(request).iter().find(|other| num_waits[other.request as usize] > 0);
        index = next.map_or(index, |dependency| dependency.request);
    }
}
