//! Random values that fit schemas.

mod items;
mod keys;

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::Rng;

use crate::node::Node;
use crate::schema::check::Check;
use crate::schema::{NOTHING, Place, Schema, Schemas, Type};
use crate::settings::Room;
use crate::values::draw::{below, pick};
use crate::values::notation::notated;
use crate::values::numbers::Range;
use crate::values::words::word;

pub(crate) const GENEROSITY_MAX: u32 = 3;

/// Values nested deeper than this have no optional text, unless `is_generous` is set.
const GENEROUS_DEPTH: u32 = 4;

const DEPTH_MAX: u32 = 40;

const BYTES_MAX: usize = 1 << 16;

/// Maximum number of schemas, keys and values visited for a document, so that no document blocks an engine.
const STEPS_MAX: u32 = 30_000;

const CHECKS_MAX: u32 = 30_000;

/// Number of tries until a value fits, and the try from which values are as short as possible.
const TRIES: u32 = 6;
const LEAN_TRY: u32 = 3;

const ALTERNATIVES_MAX: usize = 16;

/// A random document for a schema. If no document passes all checks, the result fails some of them.
pub(crate) fn document(schemas: &Schemas, rng: Rng, room: Room<'_>) -> Result<Node, String> {
    let mut writer = Writer {
        schemas,
        rng,
        room,
        depth: 0,
        steps: 0,
        checks: CHECKS_MAX,
        bytes: 0,
        is_lean: false,
        is_generous: false,
    };
    writer.value(&[schemas.root])
}

struct Writer<'a> {
    schemas: &'a Schemas,
    rng: Rng,
    room: Room<'a>,
    depth: u32,
    steps: u32,
    /// Number of remaining steps for checks. If it is 0, all values count as fitting.
    checks: u32,
    bytes: usize,
    /// Whether values must be as short as possible.
    is_lean: bool,
    /// Whether values are longer than necessary, so that they differ.
    is_generous: bool,
}

/// All schemas that a value must fit.
struct Gathered<'a> {
    parts: Vec<&'a Schema>,
    /// Maximum number of alternatives in one of the schemas.
    alternatives: usize,
    /// Whether a generated value must still be checked.
    has_tests: bool,
    /// Depth of the deepest schema.
    depth: u32,
}

impl<'a> Writer<'a> {
    fn value(&mut self, places: &[Place]) -> Result<Node, String> {
        if self.depth >= DEPTH_MAX {
            return Err(format!("the schema leads more than {DEPTH_MAX} values deep"));
        }
        let depth = self.depth;
        self.depth += 1;
        let value = self.value_here(places);
        self.depth = depth;
        value
    }

    /// Counts a step. Fails if there are too many.
    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.bytes > BYTES_MAX {
            return Err(format!("the schema makes more than {BYTES_MAX} bytes"));
        }
        if self.steps > STEPS_MAX {
            return Err(format!("the schema takes more than {STEPS_MAX} steps"));
        }
        Ok(())
    }

    fn value_here(&mut self, places: &[Place]) -> Result<Node, String> {
        let (bytes, was_lean, depth) = (self.bytes, self.is_lean, self.depth);
        let mut unfit = None;
        let mut problem = None;
        let mut tries = 1;
        let mut tried = 0;
        while tried < tries {
            if let Err(problem) = self.step() {
                return unfit.ok_or(problem);
            }
            self.bytes = bytes;
            self.is_lean = was_lean || tried >= LEAN_TRY;
            let made = match self.gather(places, tried) {
                Ok(gathered) => {
                    let others = gathered.alternatives.min(ALTERNATIVES_MAX) as u32;
                    tries = if gathered.has_tests { TRIES.max(others + 1) } else { others.max(1) };
                    self.depth = gathered.depth;
                    self.of_parts(&gathered.parts).map(|value| (value, gathered.has_tests))
                }
                Err(problem) => Err(problem),
            };
            (self.is_lean, self.depth) = (was_lean, depth);
            match made {
                Ok((value, has_tests)) if !has_tests || self.fits(places, &value) => return Ok(value),
                Ok((value, _)) => unfit = unfit.or(Some(value)),
                Err(reason) => problem = problem.or(Some(reason)),
            }
            tried += 1;
        }
        unfit.ok_or_else(|| problem.unwrap_or_else(|| "nothing fits".into()))
    }

    fn fits(&mut self, places: &[Place], value: &Node) -> bool {
        let mut check = Check::new(self.schemas, self.checks);
        let fits = places.iter().all(|place| check.fits(*place, value));
        self.checks = check.steps;
        fits
    }

    fn of_parts(&mut self, parts: &[&'a Schema]) -> Result<Node, String> {
        if let Some(value) = self.listed(parts)? {
            self.bytes += value.size();
            return Ok(value);
        }
        let types = types(parts)?;
        let least = types.iter().min();
        let chosen = if self.generosity() == 0 { least } else { pick(&types, &mut self.rng) };
        let value = match chosen {
            Some(Type::Null) | None => Node::Null,
            Some(Type::Boolean) => Node::Bool(below(&mut self.rng, 2) == 0),
            Some(Type::Integer) => Node::Number(range(parts).integer(self.room.settings.integers, &mut self.rng)?),
            Some(Type::Number) => Node::Number(range(parts).number(self.room.settings.numbers, &mut self.rng)?),
            Some(Type::String) => Node::String(self.string(parts)?),
            Some(Type::Array) => return self.array(parts),
            Some(Type::Object) => return self.object(parts),
        };
        self.bytes += value.size();
        Ok(value)
    }

    /// A random value from the lists of allowed values, if there are such lists.
    fn listed(&mut self, parts: &[&'a Schema]) -> Result<Option<Node>, String> {
        let mut lists = parts.iter().filter_map(|part| part.values.as_ref());
        let Some(first) = lists.next() else { return Ok(None) };
        let chosen = if parts.len() == 1 {
            pick(first, &mut self.rng)
        } else {
            let others: Vec<_> = lists.collect();
            self.steps += (first.len() * (1 + others.len())) as u32 / 8;
            self.step()?;
            let types = types(parts)?;
            let has_type = |value: &Node| types.iter().any(|one| crate::schema::check::has_type(*one, value));
            let is_typed = parts.iter().any(|part| !part.types.is_empty());
            let fitting: Vec<&Node> = first
                .iter()
                .filter(|value| (!is_typed || has_type(value)) && others.iter().all(|list| list.contains(value)))
                .collect();
            pick(&fitting, &mut self.rng).copied()
        };
        match chosen {
            Some(value) => Ok(Some(value.clone())),
            None => Err("no value of its `enum` fits".into()),
        }
    }

    /// The amount of optional text at the current depth.
    fn generosity(&self) -> u32 {
        if self.is_generous {
            return self.room.generosity.max(1);
        }
        if self.is_lean || self.depth > GENEROUS_DEPTH { 0 } else { self.room.generosity }
    }

    fn string(&mut self, parts: &[&'a Schema]) -> Result<String, String> {
        let rules: Vec<_> = parts.iter().filter_map(|part| part.string.as_deref()).collect();
        let shortest = rules.iter().map(|rule| rule.shortest).max().unwrap_or(0) as usize;
        let longest = rules.iter().filter_map(|rule| rule.longest).min().map_or(BYTES_MAX, |most| most as usize);
        if shortest > longest || shortest > BYTES_MAX {
            return Err(format!("there is no string of {shortest} to {longest} characters"));
        }
        let generosity = self.generosity();
        let patterns: Vec<_> = rules.iter().filter_map(|rule| rule.pattern.as_ref()).collect();
        let has_length = |text: &str| (shortest..=longest).contains(&text.chars().count());
        if let Some(notation) = rules.iter().find_map(|rule| rule.format) {
            let text = notated(notation, &mut self.rng);
            if has_length(&text) && patterns.iter().all(|pattern| pattern.is_match(&text, &mut self.steps)) {
                return Ok(text);
            }
        }
        if let Some((pattern, others)) = patterns.split_first() {
            for _ in 0..TRIES {
                self.step()?;
                let text = pattern.text_of_length(&mut self.rng, generosity, (shortest, longest), &mut self.steps);
                match text {
                    Ok(text) if others.iter().all(|other| other.is_match(&text, &mut self.steps)) => return Ok(text),
                    Ok(_) => {}
                    Err(problem) if pattern.is_exact() => return Err(problem),
                    Err(_) => break,
                }
            }
        }
        Ok(self.words(shortest, longest))
    }

    /// Words with a length between the bounds.
    fn words(&mut self, shortest: usize, longest: usize) -> String {
        let mut text = String::new();
        let words = self.generosity() * 2;
        let wanted = if words == 0 { 0 } else { 1 + below(&mut self.rng, words) };
        let mut said = 0;
        while said < wanted || text.len() < shortest {
            if said > 0 {
                text.push(' ');
            }
            text += word(&mut self.rng);
            said += 1;
        }
        // One byte per character. If no words were wanted, they only fill the required length.
        text.truncate(if wanted == 0 { shortest } else { longest });
        text
    }
}

fn types(parts: &[&Schema]) -> Result<Vec<Type>, String> {
    let mut stated = parts.iter().map(|part| &part.types).filter(|types| !types.is_empty());
    let Some(first) = stated.next() else {
        let meant = parts.iter().find_map(|part| part.meant_type());
        return Ok(meant.map_or(Vec::from([Type::String, Type::Integer, Type::Boolean]), |one| Vec::from([one])));
    };
    let mut types = first.clone();
    for others in stated {
        let narrowed = |one: &Type| {
            if others.contains(one) || *one == Type::Integer && others.contains(&Type::Number) {
                return Some(*one);
            }
            (*one == Type::Number && others.contains(&Type::Integer)).then_some(Type::Integer)
        };
        types = types.iter().filter_map(narrowed).collect();
    }
    if types.is_empty() { Err("its types exclude each other".into()) } else { Ok(types) }
}

fn range(parts: &[&Schema]) -> Range {
    let ranges = parts.iter().filter_map(|part| part.number.as_deref());
    ranges.fold(Range::default(), |range, other| range.and(other))
}

impl<'a> Writer<'a> {
    /// Collects all schemas that a value of `places` must fit, including the schemas that they refer to and one
    /// of their alternatives. Each value of `tried` chooses another alternative.
    fn gather(&mut self, places: &[Place], tried: u32) -> Result<Gathered<'a>, String> {
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
            // A referenced schema counts as one level deeper.
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
    fn is_only_parts(&self) -> bool {
        let has_rules = self.number.is_some() || self.string.is_some() || self.array.is_some() || self.object.is_some();
        self.types.is_empty() && self.values.is_none() && !has_rules
    }
}

/// The schemas that apply because a required key is present.
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
