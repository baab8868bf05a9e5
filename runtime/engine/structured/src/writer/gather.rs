//! All schemas that a value must fit.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Gathered, Writer};
use crate::schema::{NOTHING, Place, Schema};
use crate::values::draw::{below, pick};

impl<'a> Writer<'a> {
    /// All schemas that a value of these schemas must fit: those that they refer to, and one of their alternatives. Each
    /// try takes another alternative.
    pub(super) fn gather(&mut self, places: &[Place], tried: u32) -> Result<Gathered<'a>, String> {
        let depth = self.depth;
        let gathered = self.gather_from(places, tried);
        self.depth = depth;
        gathered
    }

    fn gather_from(&mut self, places: &[Place], tried: u32) -> Result<Gathered<'a>, String> {
        let depth = self.depth;
        let mut gathered = Gathered { parts: Vec::new(), alternatives: 0, has_tests: false, depth };
        let mut seen = BTreeSet::new();
        let mut open: Vec<(Place, u32)> = places.iter().rev().map(|place| (*place, depth)).collect();
        while let Some((place, depth)) = open.pop() {
            // What is behind a reference counts as deeper.
            self.depth = depth;
            gathered.depth = gathered.depth.max(depth);
            if place == NOTHING {
                return Err("nothing fits the schema `false`".into());
            }
            if !seen.insert(place) {
                continue;
            }
            self.step()?;
            let schema = self.schemas.get(place);
            gathered.has_tests |= schema.has_tests();
            let mut inner = Vec::new();
            if !schema.any_of.is_empty() || !schema.one_of.is_empty() {
                for (alternatives, least) in [&schema.any_of, &schema.one_of].into_iter().zip(schema.least) {
                    gathered.alternatives = gathered.alternatives.max(alternatives.len());
                    inner.extend(self.alternative(alternatives, least, tried));
                }
            }
            if let Some(condition) = &schema.condition {
                let first = if self.generosity() == 0 { 0 } else { below(&mut self.rng, 2) };
                if (first + tried).is_multiple_of(2) {
                    inner.extend([condition.given, condition.then]);
                } else {
                    inner.push(condition.otherwise);
                }
            }
            inner.extend(&schema.all_of);
            inner.extend(schema.reference);
            inner.extend(dependent(schema));
            open.extend(inner.into_iter().rev().map(|place| (place, depth + 1)));
            gathered.parts.push(schema);
        }
        let lists = gathered.parts.iter().filter(|part| part.values.is_some()).count();
        gathered.has_tests |= lists > 0 && gathered.parts.len() > 1;
        gathered.parts.retain(|part| !part.is_only_parts());
        Ok(gathered)
    }

    fn alternative(&mut self, alternatives: &[Place], least: Option<Place>, tried: u32) -> Option<Place> {
        if let Some(before) = tried.checked_sub(1) {
            return alternatives.get(before as usize % alternatives.len().max(1)).copied();
        }
        if self.generosity() > 0 { pick(alternatives, &mut self.rng).copied() } else { least }
    }
}

impl Schema {
    /// Whether it binds by its parts alone.
    fn is_only_parts(&self) -> bool {
        let has_rules = self.number.is_some() || self.string.is_some() || self.array.is_some() || self.object.is_some();
        self.types.is_empty() && self.values.is_none() && !has_rules
    }
}

/// The schemas that depend on required keys.
fn dependent(schema: &Schema) -> impl Iterator<Item = Place> {
    let rule = schema.object.as_deref().filter(|rule| !rule.dependent.is_empty());
    rule.into_iter().flat_map(|rule| {
        let is_required = |name: &str| {
            let mut properties = rule.properties.iter();
            properties.any(|property| property.is_required && property.name == name)
        };
        rule.dependent.iter().filter(move |(name, _)| is_required(name)).map(|(_, place)| *place)
    })
}
