//! Dependencies of the requests of agents.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::{Log, LoggedTool, Misplaced, NS_PER_MS};
use crate::{Dependency, RowProblem, Trigger};

/// The sessions of a log: each with its requests in order of time, and whether
/// another session started it.
struct Sessions<'a> {
    by_name: BTreeMap<&'a str, Vec<u32>>,
    parents: BTreeMap<&'a str, &'a str>,
}

/// Of each request that waits, by its place in order of time, what it waits for.
pub(super) fn edges(log: &Log, by_name: &HashMap<&str, u32>) -> Result<Vec<(u32, Dependency)>, Misplaced> {
    let Some(sessions) = sessions(log)? else { return Ok(Vec::new()) };
    let mut edges = Edges { log, edges: Vec::new() };
    for turns in sessions.by_name.values() {
        for pair in turns.windows(2) {
            edges.push(pair[1], pair[0], Trigger::Completion);
        }
    }
    let tools = tools_by_child(log, by_name, &sessions)?;
    for (child, parent) in &sessions.parents {
        // The log may begin after the parent has ended.
        let Some(parents) = sessions.by_name.get(parent) else { continue };
        let children = &sessions.by_name[child];
        let first_child = children[0];
        let end_ms = |index: u32| log.requests[index as usize].end_ms;
        let start_ms = |index: u32| log.requests[index as usize].start_ms;
        // The later of equal ends.
        let last_child = children.iter().copied().max_by_key(|index| end_ms(*index)).unwrap_or(first_child);
        let (caller, taker) = match tools.get(child) {
            Some(tool) => {
                let taker = tool.links.consumer_request_id.as_deref().map(|name| by_name[name]);
                (Some(by_name[&*tool.links.source_request_id]), taker)
            }
            None => (
                parents.iter().copied().rfind(|index| start_ms(*index) <= start_ms(first_child)),
                parents.iter().copied().find(|index| start_ms(*index) >= end_ms(last_child)),
            ),
        };
        if let Some(caller) = caller {
            edges.push(first_child, caller, Trigger::Dispatch);
        }
        if let Some(taker) = taker {
            edges.push(taker, last_child, Trigger::Completion);
        }
    }
    Ok(edges.edges)
}

/// The sessions, if the log is of agents.
fn sessions(log: &Log) -> Result<Option<Sessions<'_>>, Misplaced> {
    let with_context = log.requests.iter().filter(|request| request.context.is_some()).count();
    if with_context == 0 {
        return Ok(None);
    }
    let mut sessions = Sessions { by_name: BTreeMap::new(), parents: BTreeMap::new() };
    for (index, request) in log.requests.iter().enumerate() {
        let Some(context) = &request.context else {
            let text = "the field is missing, but other requests have it; all or none must".to_owned();
            return Err((request.place, (Some("agent_context"), RowProblem::Malformed(text))));
        };
        sessions.by_name.entry(&context.session_id).or_default().push(index as u32);
        let Some(parent) = &context.parent_session_id else { continue };
        let known = sessions.parents.insert(&context.session_id, parent);
        if let Some(known) = known.filter(|known| **known != **parent) {
            let text = format!("session `{}` has two parents, `{known}` and `{parent}`", context.session_id);
            return Err((request.place, (Some("agent_context.parent_session_id"), RowProblem::Malformed(text))));
        }
    }
    Ok(Some(sessions))
}

/// Checks the tool calls and gives those that started a session, by its name.
fn tools_by_child<'a>(
    log: &'a Log,
    by_name: &HashMap<&str, u32>,
    sessions: &Sessions<'_>,
) -> Result<BTreeMap<&'a str, &'a LoggedTool>, Misplaced> {
    let mut by_child: BTreeMap<&str, &LoggedTool> = BTreeMap::new();
    for tool in &log.tools {
        let named = [
            ("tool.claude.source_request_id", Some(&tool.links.source_request_id)),
            ("tool.claude.consumer_request_id", tool.links.consumer_request_id.as_ref()),
        ];
        for (field, name) in named {
            let Some(name) = name else { continue };
            let Some(index) = by_name.get(&**name) else {
                let problem = RowProblem::UnknownRequest { request_id: name.clone() };
                return Err((tool.place, (Some(field), problem)));
            };
            let session = log.requests[*index as usize].context.as_ref().map(|context| &context.session_id);
            if session != Some(&tool.session_id) {
                let text = format!("request `{name}` is not of session `{}`, which called the tool", tool.session_id);
                return Err((tool.place, (Some(field), RowProblem::Malformed(text))));
            }
        }
        let Some(child) = &tool.links.child_session_id else { continue };
        if sessions.parents.contains_key(&**child) && by_child.insert(child, tool).is_some() {
            let text = format!("an earlier tool call has started session `{child}`");
            return Err((tool.place, (Some("tool.claude.child_session_id"), RowProblem::Malformed(text))));
        }
    }
    Ok(by_child)
}

struct Edges<'a> {
    log: &'a Log,
    edges: Vec<(u32, Dependency)>,
}

impl Edges<'_> {
    /// Lets `request` wait for `other` as long as it did.
    fn push(&mut self, request: u32, other: u32, trigger: Trigger) {
        let [waiting, awaited] = [request, other].map(|index| &self.log.requests[index as usize]);
        let from_ms = match trigger {
            Trigger::Dispatch => awaited.start_ms,
            Trigger::Completion => awaited.end_ms,
        };
        let delay_ns = waiting.start_ms.saturating_sub(from_ms).saturating_mul(NS_PER_MS);
        self.edges.push((request, Dependency { request: other, trigger, delay_ns }));
    }
}
