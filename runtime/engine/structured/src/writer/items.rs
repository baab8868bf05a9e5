//! Random arrays.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Writer;
use crate::node::Node;
use crate::schema::{ANY, ArrayRule, NOTHING, Place, Schema};
use crate::values::draw::below;

/// Number of tries to replace a duplicate item, if items must be unique.
const TRIES: u32 = 24;

impl<'a> Writer<'a> {
    pub(super) fn array(&mut self, parts: &[&'a Schema]) -> Result<Node, String> {
        let rules: Vec<&ArrayRule> = parts.iter().filter_map(|part| part.array.as_deref()).collect();
        let count = self.item_count(&rules)?;
        let is_unique = rules.iter().any(|rule| rule.is_unique);
        let fewest = rules.iter().map(|rule| rule.fewest).max().unwrap_or(0) as usize;
        let mut items = Vec::new();
        self.bytes += 2;
        for index in 0..count {
            let places = item_places(&rules, index, count);
            let item = match self.value(&places) {
                // An item beyond the required number can be left out.
                Err(_) if items.len() >= fewest && rules.iter().all(|rule| rule.contains.is_none()) => break,
                item => item?,
            };
            let item = if is_unique { self.another(item, &items, &places)? } else { Some(item) };
            match item {
                Some(item) => items.push(item),
                None => break,
            }
            self.bytes += 2;
        }
        Ok(Node::Array(items))
    }

    fn item_count(&mut self, rules: &[&ArrayRule]) -> Result<u32, String> {
        let contained = |rule: &&ArrayRule| rule.contains.map(|contains| contains.fewest);
        let fewest = rules.iter().map(|rule| rule.fewest).max().unwrap_or(0);
        let stated = rules.iter().filter_map(|rule| rule.most).min();
        let closed = rules.iter().filter(|rule| rule.items == Some(NOTHING)).map(|rule| rule.first.len() as u32).min();
        let most = stated.unwrap_or(u32::MAX).min(closed.unwrap_or(u32::MAX));
        if fewest > most {
            return Err(format!("there is no array of {fewest} to {most} items"));
        }
        let fewest = fewest.max(rules.iter().filter_map(contained).max().unwrap_or(0)).min(most);
        // A tuple is written completely, and has more items only if there is a schema for them.
        let tuple = rules.iter().map(|rule| rule.first.len() as u32).max().filter(|length| *length > 0);
        let is_open = rules.iter().any(|rule| rule.items.is_some());
        let (fewest, most) = match tuple {
            Some(length) if is_open => (fewest.max(length).min(most), most),
            Some(length) => {
                let fewest = fewest.max(length).min(most);
                (fewest, most.min(fewest.max(length)))
            }
            None => (fewest, most),
        };
        let generosity = self.generosity();
        let (fewest, more) = match self.room.settings.array_items.filter(|_| generosity > 0) {
            None => (fewest, below(&mut self.rng, generosity + 1).min(most - fewest)),
            Some((usual_fewest, usual_most)) => {
                let fewest = if fewest == 0 { usual_fewest.min(most) } else { fewest };
                let most = stated.unwrap_or(usual_most).min(most).max(fewest);
                (fewest, below(&mut self.rng, (most - fewest).saturating_add(1)))
            }
        };
        Ok(fewest + more)
    }

    /// Returns the item, or a replacement if it is already among the items.
    fn another(&mut self, mut item: Node, items: &[Node], places: &[Place]) -> Result<Option<Node>, String> {
        let was_generous = self.is_generous;
        for _ in 0..TRIES {
            self.steps += items.len() as u32 / 32;
            self.step()?;
            if !items.contains(&item) {
                return Ok(Some(item));
            }
            self.is_generous = true;
            let made = self.value(places);
            self.is_generous = was_generous;
            item = made?;
        }
        Ok(None)
    }
}

/// The schemas that item `index` of `count` items must fit.
fn item_places(rules: &[&ArrayRule], index: u32, count: u32) -> Vec<Place> {
    let mut places = Vec::new();
    for rule in rules {
        places.extend(rule.first.get(index as usize).copied().or(rule.items));
        let contains = rule.contains.filter(|contains| index >= count.saturating_sub(contains.fewest));
        places.extend(contains.map(|contains| contains.place));
    }
    if places.is_empty() {
        places.push(ANY);
    }
    places
}
