//! First difference of two lists, for people who look at one entry and not at a wall of JSON.

use serde_json::Value;

/// The first entry of which two lists differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstEntry<'a> {
    /// Its index, from 0.
    pub index: usize,
    /// In the first list; none where that ends before.
    pub left: Option<&'a Value>,
    /// In the second list.
    pub right: Option<&'a Value>,
    /// The part of the entry that differs, by name, and both its values; where
    /// the entries are of the same kind and their parts have names.
    pub part: Option<(&'static str, &'a Value, &'a Value)>,
}

/// The first entry of which two values of `field` differ; none if one of them
/// is not a list, or they are equal.
#[must_use]
pub fn first_entry<'a>(field: &str, left: &'a Value, right: &'a Value) -> Option<FirstEntry<'a>> {
    let (ours, theirs) = (left.as_array()?, right.as_array()?);
    let most = ours.len().max(theirs.len());
    let index = (0..most).find(|&index| ours.get(index) != theirs.get(index))?;
    let (left, right) = (ours.get(index), theirs.get(index));
    let part = left.zip(right).and_then(|(left, right)| first_part(field, left, right));
    Some(FirstEntry { index, left, right, part })
}

fn first_part<'a>(field: &str, left: &'a Value, right: &'a Value) -> Option<(&'static str, &'a Value, &'a Value)> {
    let (ours, theirs) = (left.as_array()?, right.as_array()?);
    let names: &[&'static str] = match field {
        "sched" => &["request", "tokens", "computed tokens", "kind", "new blocks", "drafts"],
        "out" | "emitted" | "drafts" => &["request", "tokens"],
        "fin" | "stopped" => &["request", "reason"],
        "ev" if ours.first() == theirs.first() && ours.len() == 3 => &["kind", "parent", "blocks"],
        _ => return None,
    };
    // Rows without drafts leave the number out.
    let none = &Value::Null;
    let part = |row: &'a [Value], index: usize| row.get(index).unwrap_or(none);
    let index = (0..names.len()).find(|&index| part(ours, index) != part(theirs, index))?;
    Some((names[index], part(ours, index), part(theirs, index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_entry_and_its_part_are_found() {
        let ours = json!([[0, 1, 9, "r", []], [3, 40, 0, "n", [7, 8]]]);
        let theirs = json!([[0, 1, 9, "r", []], [3, 32, 0, "n", [7, 8]]]);
        let found = first_entry("sched", &ours, &theirs).expect("they differ");
        assert_eq!((found.index, found.left), (1, Some(&json!([3, 40, 0, "n", [7, 8]]))));
        assert_eq!(found.part, Some(("tokens", &json!(40), &json!(32))));
    }

    #[test]
    fn a_list_may_end_before_the_other() {
        let (ours, theirs) = (json!([1, 2]), json!([1, 2, 3]));
        let found = first_entry("run", &ours, &theirs).expect("they differ");
        assert_eq!((found.index, found.left, found.right), (2, None, Some(&json!(3))));
        assert_eq!(found.part, None);
    }

    #[test]
    fn drafts_may_be_missing_on_one_side() {
        let (ours, theirs) = (json!([[0, 3, 9, "r", [], 2]]), json!([[0, 3, 9, "r", []]]));
        let found = first_entry("sched", &ours, &theirs).expect("they differ");
        assert_eq!(found.part, Some(("drafts", &json!(2), &json!(null))));
    }

    #[test]
    fn what_is_no_list_has_no_entry() {
        assert_eq!(first_entry("free", &json!(3), &json!(4)), None);
        assert_eq!(first_entry("sched", &json!(null), &json!([])), None);
        assert_eq!(first_entry("run", &json!([1]), &json!([1])), None);
    }
}
