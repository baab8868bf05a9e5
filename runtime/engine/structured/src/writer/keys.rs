//! Random objects.

use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::{STEPS_MAX, Writer};
use crate::node::Node;
use crate::schema::{ANY, NOTHING, ObjectRule, Place, Schema};
use crate::settings::happens;
use crate::values::draw::{below, pick};
use crate::values::words::WORDS;

/// Number of tries for an additional key, since keys may repeat.
const TRIES: usize = 8;

struct Named<'a> {
    name: &'a str,
    places: Vec<Place>,
    is_required: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn object(&mut self, parts: &[&'a Schema]) -> Result<Node, String> {
        let rules: Vec<&'a ObjectRule> = parts.iter().filter_map(|part| part.object.as_deref()).collect();
        if rules.iter().all(|rule| leaves_all_open(rule)) {
            return self.any_object().map(Node::Object);
        }
        let fewest = rules.iter().map(|rule| rule.fewest).max().unwrap_or(0) as usize;
        let most = rules.iter().filter_map(|rule| rule.most).min().map_or(usize::MAX, |most| most as usize);
        let named = self.named(&rules)?;
        let required = named.iter().filter(|key| key.is_required).count();
        let mut entries = Vec::new();
        let mut left_out = Vec::new();
        self.bytes += 2;
        for key in &named {
            self.step()?;
            if !key.is_required {
                let is_chosen = self.generosity() > 0 && happens(self.optional_probability(), &mut self.rng);
                if !is_chosen || required.max(entries.len()) >= most || has_dependent(&rules, key.name) {
                    left_out.push(key);
                    continue;
                }
            }
            self.entry(key, &rules, &mut entries)?;
        }
        for key in left_out {
            if entries.len() >= fewest {
                break;
            }
            self.entry(key, &rules, &mut entries)?;
        }
        self.free_entries(&rules, (fewest, most), named.is_empty(), &mut entries)?;
        Ok(Node::Object(entries))
    }

    /// Writes an entry. If that fails and the entry is optional, it is left out.
    fn entry(
        &mut self,
        key: &Named<'a>,
        rules: &[&'a ObjectRule],
        entries: &mut Vec<(String, Node)>,
    ) -> Result<(), String> {
        let mut places = key.places.clone();
        for rule in rules.iter().filter(|rule| !rule.patterns.is_empty()) {
            for (pattern, place) in &rule.patterns {
                self.step()?;
                if pattern.is_match(key.name, &mut self.steps) {
                    places.push(*place);
                }
            }
        }
        if places.is_empty() {
            places = described_by_others(rules);
        }
        let bytes = self.bytes;
        self.bytes += key.name.len() + 6;
        match self.value(&places) {
            Ok(value) => entries.push((key.name.into(), value)),
            Err(problem) if key.is_required || self.steps > STEPS_MAX => return Err(problem),
            Err(_) => self.bytes = bytes,
        }
        Ok(())
    }

    /// The keys that the schemas name, in their order.
    fn named(&mut self, rules: &[&'a ObjectRule]) -> Result<Vec<Named<'a>>, String> {
        let mut named: Vec<Named<'a>> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        let generosity = self.generosity();
        for rule in rules {
            // No optional key is written in this case.
            let needs_required_only = generosity == 0 && rules.len() == 1 && rule.fewest == 0;
            for property in &rule.properties {
                if needs_required_only && !property.is_required {
                    continue;
                }
                self.steps += u32::from(rules.len() > 1);
                let known_at = if rules.len() == 1 { None } else { known.get(property.name.as_str()).copied() };
                match known_at {
                    Some(at) => {
                        named[at].places.extend(property.place);
                        named[at].is_required |= property.is_required;
                    }
                    None => {
                        if rules.len() > 1 {
                            known.insert(&property.name, named.len());
                        }
                        let places = property.place.into_iter().collect();
                        named.push(Named { name: &property.name, places, is_required: property.is_required });
                    }
                }
            }
        }
        self.step()?;
        Ok(named)
    }

    /// Writes keys that no schema names: the required number, and some more if the schemas name no keys.
    fn free_entries(
        &mut self,
        rules: &[&'a ObjectRule],
        (fewest, most): (usize, usize),
        names_none: bool,
        entries: &mut Vec<(String, Node)>,
    ) -> Result<(), String> {
        let is_closed = rules.iter().any(|rule| rule.further == Some(NOTHING) || rule.unevaluated == Some(NOTHING));
        let patterns: Vec<_> = rules.iter().flat_map(|rule| &rule.patterns).collect();
        if is_closed && patterns.is_empty() {
            return Ok(());
        }
        let generosity = self.generosity();
        let wanted = if names_none { below(&mut self.rng, 2 * generosity + 1) as usize } else { 0 };
        let wanted = wanted.max(fewest.saturating_sub(entries.len())).min(most.saturating_sub(entries.len()));
        if wanted == 0 {
            return Ok(());
        }
        let mut known: BTreeSet<String> = entries.iter().map(|(key, _)| key.clone()).collect();
        let first = below(&mut self.rng, WORDS.len() as u32) as usize;
        let total = entries.len() + wanted;
        for index in 0..wanted.saturating_mul(2).saturating_add(TRIES) {
            if entries.len() >= total {
                break;
            }
            self.step()?;
            let pattern = if is_closed || !patterns.is_empty() { pick(&patterns, &mut self.rng) } else { None };
            let key = match self.free_key(rules, pattern.map(|(pattern, _)| pattern), first + index)? {
                Some(key) if known.insert(key.clone().into_owned()) => key,
                _ => continue,
            };
            let steps = &mut self.steps;
            let matching = patterns.iter().filter(|(pattern, _)| pattern.is_match(&key, steps));
            let mut places: Vec<Place> = matching.map(|(_, place)| *place).collect();
            if places.is_empty() {
                places = described_by_others(rules);
            }
            self.bytes += key.len() + 6;
            let value = self.value(&places)?;
            entries.push((key.into_owned(), value));
        }
        Ok(())
    }

    /// A key that satisfies the schemas' constraints on keys.
    fn free_key(
        &mut self,
        rules: &[&'a ObjectRule],
        pattern: Option<&crate::values::pattern::Pattern>,
        index: usize,
    ) -> Result<Option<Cow<'a, str>>, String> {
        let names: Vec<Place> = rules.iter().filter_map(|rule| rule.names).filter(|place| *place != ANY).collect();
        if !names.is_empty() {
            let was_generous = core::mem::replace(&mut self.is_generous, true);
            let name = self.name(&names);
            self.is_generous = was_generous;
            return Ok(Some(Cow::Owned(name?)));
        }
        match pattern {
            Some(pattern) => Ok(pattern.text(&mut self.rng, 1, &mut self.steps).ok().map(Cow::Owned)),
            // Successive words, so that no key repeats.
            None => Ok(Some(match (WORDS[index % WORDS.len()], index / WORDS.len()) {
                (word, 0 | 1) if index < 2 * WORDS.len() => Cow::Borrowed(word),
                (word, round) => Cow::Owned(alloc::format!("{word}_{round}")),
            })),
        }
    }

    /// A string that fits these schemas, even if they do not state a type.
    fn name(&mut self, places: &[Place]) -> Result<String, String> {
        let gathered = self.gather(places, 0)?;
        if let Some(Node::String(name)) = self.listed(&gathered.parts)? {
            return Ok(name);
        }
        self.string(&gathered.parts)
    }

    /// Probability of an optional key. The arguments of a tool are the keys of the outermost
    /// object.
    fn optional_probability(&self) -> f64 {
        let settings = self.room.settings;
        let set = if self.depth <= 1 { settings.optional_arguments } else { settings.optional_fields };
        set.unwrap_or(0.5)
    }

    /// Random keys and values for an object without constraints.
    fn any_object(&mut self) -> Result<Vec<(String, Node)>, String> {
        self.step()?;
        let generosity = self.generosity();
        let count = below(&mut self.rng, 2 * generosity + 1);
        // Successive words, so that no key repeats.
        let first = below(&mut self.rng, WORDS.len() as u32) as usize;
        self.bytes += 2;
        let mut entries = Vec::new();
        for index in 0..count as usize {
            let key = WORDS[(first + index) % WORDS.len()];
            self.bytes += key.len() + 6;
            let value = match below(&mut self.rng, 4) {
                0 if generosity > 0 => {
                    self.depth += 1;
                    let inner = self.any_object();
                    self.depth -= 1;
                    Node::Object(inner?)
                }
                1 => self.array(&[])?,
                _ => self.value(&[ANY])?,
            };
            entries.push((key.into(), value));
        }
        Ok(entries)
    }
}

/// Whether a rule puts no constraint on keys.
fn leaves_all_open(rule: &ObjectRule) -> bool {
    let is_open = |place: Option<Place>| place.is_none_or(|place| place == ANY);
    let names_none = rule.properties.is_empty() && rule.patterns.is_empty() && rule.names.is_none();
    let counts_none = rule.fewest == 0 && rule.most.is_none();
    names_none && counts_none && is_open(rule.further) && is_open(rule.unevaluated)
}

fn has_dependent(rules: &[&ObjectRule], name: &str) -> bool {
    rules.iter().any(|rule| rule.dependent.iter().any(|(dependent, _)| dependent == name))
}

/// The schemas for the value of a key that no schema names.
fn described_by_others(rules: &[&ObjectRule]) -> Vec<Place> {
    let further = rules.iter().filter_map(|rule| rule.further.or(rule.unevaluated));
    let mut places: Vec<Place> = further.filter(|place| *place != NOTHING).collect();
    if places.is_empty() {
        places.push(ANY);
    }
    places
}
