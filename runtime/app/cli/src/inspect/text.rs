//! Formats values of a log.

use serde_json::Value;
use vcr_steplog::{Blocks, EngineName, Id, LogKind, Step, StepEvent, Steps};

use crate::terminal::text::counted;

/// Numbers, with consecutive ones as ranges: `3-9, 12`.
pub(super) fn ranges(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let texts = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<String>>().join(", ")
}

/// Requests by id, with consecutive numbers as ranges.
pub(super) fn ids<'a>(ids: impl IntoIterator<Item = &'a Id> + Clone) -> String {
    let numbers: Option<Vec<u64>> = ids
        .clone()
        .into_iter()
        .map(|id| match id {
            Id::Number(number) => Some(*number),
            Id::Name(_) => None,
        })
        .collect();
    match numbers {
        Some(numbers) => ranges(numbers),
        None => ids.into_iter().map(Id::to_string).collect::<Vec<String>>().join(", "),
    }
}

/// The words for `n`, `p` and `r`.
pub(super) fn kind(kind: char) -> &'static str {
    match kind {
        'n' => "new",
        'p' => "resumed",
        'r' => "running",
        _ => "?",
    }
}

/// New blocks of a request, by KV cache group.
pub(super) fn blocks(blocks: &Blocks) -> String {
    let of_group = |blocks: &Vec<u32>| ranges(blocks.iter().copied().map(u64::from));
    match blocks {
        Blocks::One(blocks) => of_group(blocks),
        Blocks::ByGroup(groups) => groups.iter().map(of_group).collect::<Vec<String>>().join(" | "),
    }
}

pub(super) fn event(event: &StepEvent) -> String {
    let of_group = |group: &Option<u32>| group.map_or_else(String::new, |group| format!(" of group {group}"));
    match event {
        StepEvent::Stored(None, blocks, group) => {
            format!("stored {}{}", ranges(blocks.iter().copied()), of_group(group))
        }
        StepEvent::Stored(Some(parent), blocks, group) => {
            format!("stored {} after {parent}{}", ranges(blocks.iter().copied()), of_group(group))
        }
        StepEvent::Removed(blocks, group) => format!("removed {}{}", ranges(blocks.iter().copied()), of_group(group)),
        StepEvent::Cleared => "cleared".to_owned(),
    }
}

/// The value of a field, or a part of it, shortened to fit a line.
pub(super) fn value(value: &Value) -> String {
    if let Some(numbers) = numbers(value).filter(|numbers| numbers.len() > 2) {
        return format!("[{}]", ranges(numbers));
    }
    match value {
        Value::Array(entries) => {
            let entries: Vec<String> = entries.iter().map(self::value).collect();
            format!("[{}]", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// An entry of the list `field`, or a note that the list is shorter.
pub(super) fn entry(field: &str, entry: Option<&Value>) -> String {
    let Some(entry) = entry else { return "the list ends before".to_owned() };
    scheduled(field, entry).unwrap_or_else(|| value(entry))
}

fn scheduled(field: &str, entry: &Value) -> Option<String> {
    if field != "sched" {
        return None;
    }
    let [request, tokens, computed, kind, blocks, drafts @ ..] = &entry.as_array()?[..] else { return None };
    let request = request.as_str().map_or_else(|| request.to_string(), str::to_owned);
    let kind = self::kind(kind.as_str()?.chars().next()?);
    let blocks = ranges(numbers(blocks)?);
    let blocks = if blocks.is_empty() { "no new blocks".to_owned() } else { format!("blocks {blocks}") };
    let drafts = drafts.first().and_then(Value::as_u64);
    let drafts = drafts.map_or(String::new(), |drafts| format!(", {}", counted(drafts, "draft")));
    let tokens = counted(tokens.as_u64()?, "token");
    Some(format!("request {request}, {kind}: {tokens} after {computed}, {blocks}{drafts}"))
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

/// The engine's name, if the log has several engines.
pub(super) fn of_engine(engine: &EngineName) -> String {
    if engine.is_unnamed() { String::new() } else { format!(" of {engine}") }
}

/// The zero of reported times. A live engine's clock starts at an arbitrary time.
pub(super) fn clock_start_ms(steps: &Steps<'_>) -> f64 {
    match steps.log.kind {
        LogKind::Live => steps.steps.first().and_then(Step::start_ms).unwrap_or(0.0),
        LogKind::Scheduler => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn neighbours_become_ranges() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([4]), "4");
        assert_eq!(ranges([1, 2, 4, 5, 6, 9]), "1, 2, 4-6, 9");
        // Only ascending runs become ranges, because order matters.
        assert_eq!(ranges([3, 2, 1, u64::MAX]), "3, 2, 1, 18446744073709551615");
    }

    #[test]
    fn entries_are_reported_in_words() {
        let row = json!([3, 40, 16, "n", [7, 8, 9], 2]);
        assert_eq!(entry("sched", Some(&row)), "request 3, new: 40 tokens after 16, blocks 7-9, 2 drafts");
        let row = json!(["warm0", 1, 16, "r", []]);
        assert_eq!(entry("sched", Some(&row)), "request warm0, running: 1 token after 16, no new blocks");
        assert_eq!(entry("sched", Some(&json!([1]))), "[1]");
        assert_eq!(entry("run", Some(&json!(3))), "3");
        assert_eq!(entry("run", None), "the list ends before");
        assert_eq!(value(&json!([[0, "length"], [1, 2, 3, 4]])), "[[0, \"length\"], [1-4]]");
    }
}
