//! Checks whether values fit schemas.

use alloc::collections::BTreeMap;
use alloc::string::String;

use super::{ANY, ArrayRule, NOTHING, ObjectRule, Place, Schema, Schemas, Type};
use crate::node::Node;
use crate::values::pattern::Pattern;

/// Schemas nested deeper than this count as fitting.
const DEPTH_MAX: u32 = 100;

/// Checks values against schemas, in a limited number of steps.
pub(crate) struct Check<'a> {
    schemas: &'a Schemas,
    /// Number of remaining steps. If it is 0, all values count as fitting.
    pub(crate) steps: u32,
    depth: u32,
}

impl<'a> Check<'a> {
    pub(crate) fn new(schemas: &'a Schemas, steps: u32) -> Self {
        Self { schemas, steps, depth: 0 }
    }

    /// Whether a value fits a schema. Unknown formats count as fitting.
    pub(crate) fn fits(&mut self, place: Place, value: &Node) -> bool {
        match place {
            ANY => return true,
            NOTHING => return false,
            _ if self.steps == 0 || self.depth >= DEPTH_MAX => return true,
            _ => {}
        }
        self.steps -= 1;
        self.depth += 1;
        let schema = self.schemas.get(place);
        let fits = self.fits_parts(schema, value) && self.fits_rules(schema, value);
        self.depth -= 1;
        fits
    }

    fn fits_parts(&mut self, schema: &Schema, value: &Node) -> bool {
        let is_type = schema.types.is_empty() || schema.types.iter().any(|one| has_type(*one, value));
        is_type
            && schema.values.as_ref().is_none_or(|values| self.is_one_of(values, value))
            && schema.reference.is_none_or(|place| self.fits(place, value))
            && schema.all_of.iter().all(|place| self.fits(*place, value))
            && (schema.any_of.is_empty() || schema.any_of.iter().any(|place| self.fits(*place, value)))
            && (schema.one_of.is_empty() || self.num_fitting(&schema.one_of, value) == 1)
            && schema.not.is_none_or(|place| self.steps == 0 || !self.fits(place, value))
            && schema.condition.as_ref().is_none_or(|condition| {
                let branch = if self.fits(condition.given, value) { condition.then } else { condition.otherwise };
                self.fits(branch, value)
            })
    }

    fn is_match(&mut self, pattern: &Pattern, text: &str) -> bool {
        let mut work = 0;
        let is_match = pattern.is_match(text, &mut work);
        self.steps = self.steps.saturating_sub(work);
        is_match
    }

    fn is_one_of(&mut self, values: &[Node], value: &Node) -> bool {
        self.steps = self.steps.saturating_sub(values.len() as u32 / 8);
        values.iter().any(|own| own == value)
    }

    fn num_fitting(&mut self, places: &[Place], value: &Node) -> usize {
        let count = places.iter().filter(|place| self.fits(**place, value)).count();
        // Without remaining steps, all schemas seem to fit.
        if self.steps == 0 { 1 } else { count }
    }

    fn fits_rules(&mut self, schema: &Schema, value: &Node) -> bool {
        match value {
            Node::Number(text) => schema.number.as_ref().is_none_or(|range| range.has(text)),
            Node::String(text) => schema.string.as_ref().is_none_or(|rule| {
                let length = text.chars().count();
                length >= rule.shortest as usize
                    && rule.longest.is_none_or(|longest| length <= longest as usize)
                    && rule.pattern.as_ref().is_none_or(|pattern| self.is_match(pattern, text))
            }),
            Node::Array(items) => schema.array.as_ref().is_none_or(|rule| self.fits_array(rule, items)),
            Node::Object(entries) => schema.object.as_ref().is_none_or(|rule| self.fits_object(rule, entries)),
            Node::Null | Node::Bool(_) => true,
        }
    }

    fn fits_array(&mut self, rule: &ArrayRule, items: &[Node]) -> bool {
        let count = items.len();
        let is_counted = count >= rule.fewest as usize && rule.most.is_none_or(|most| count <= most as usize);
        let places = rule.first.iter().map(|place| Some(*place)).chain(core::iter::repeat(rule.items));
        let fit = is_counted
            && items.iter().zip(places).all(|(item, place)| place.is_none_or(|place| self.fits(place, item)));
        let contains = fit
            && rule.contains.is_none_or(|contains| {
                let found = items.iter().filter(|item| self.fits(contains.place, item)).count();
                self.steps == 0 || found >= contains.fewest as usize && found <= contains.most as usize
            });
        contains && (!rule.is_unique || self.are_unique(items))
    }

    fn are_unique(&mut self, items: &[Node]) -> bool {
        items.iter().enumerate().all(|(index, item)| {
            self.steps = self.steps.saturating_sub(1 + index as u32 / 8);
            self.steps == 0 || !items[..index].contains(item)
        })
    }

    fn fits_object(&mut self, rule: &ObjectRule, entries: &[(String, Node)]) -> bool {
        let count = entries.len();
        if count < rule.fewest as usize || rule.most.is_some_and(|most| count > most as usize) {
            return false;
        }
        let found: BTreeMap<&str, &Node> = entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let mut described: BTreeMap<&str, Place> = BTreeMap::new();
        for property in &rule.properties {
            self.steps = self.steps.saturating_sub(1);
            if property.is_required && !found.contains_key(property.name.as_str()) {
                return false;
            }
            if let Some(place) = property.place {
                described.insert(&property.name, place);
            }
        }
        let names =
            |check: &mut Self, key: &str| rule.names.is_none_or(|place| check.fits(place, &Node::String(key.into())));
        entries.iter().all(|(key, value)| names(self, key) && self.fits_entry(rule, &described, key, value))
            && rule.dependent.iter().all(|(key, place)| {
                !found.contains_key(key.as_str()) || self.fits(*place, &Node::Object(entries.to_vec()))
            })
    }

    fn fits_entry(&mut self, rule: &ObjectRule, described: &BTreeMap<&str, Place>, key: &str, value: &Node) -> bool {
        let own = described.get(key).copied();
        let mut is_described = own.is_some();
        if !own.is_none_or(|place| self.fits(place, value)) {
            return false;
        }
        for (pattern, place) in &rule.patterns {
            self.steps = self.steps.saturating_sub(1);
            if self.is_match(pattern, key) {
                is_described = true;
                if !self.fits(*place, value) {
                    return false;
                }
            }
        }
        is_described || rule.further.is_none_or(|place| self.fits(place, value))
    }
}

pub(crate) fn has_type(one: Type, value: &Node) -> bool {
    match (one, value) {
        (Type::Null, Node::Null)
        | (Type::Boolean, Node::Bool(_))
        | (Type::Number, Node::Number(_))
        | (Type::String, Node::String(_))
        | (Type::Array, Node::Array(_))
        | (Type::Object, Node::Object(_)) => true,
        (Type::Integer, Node::Number(text)) => {
            text.parse::<i128>().is_ok() || text.parse::<f64>().is_ok_and(|value| (value as i128) as f64 == value)
        }
        _ => false,
    }
}
