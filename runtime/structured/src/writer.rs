use alloc::format;
use alloc::string::String;

use vcr_guest_sdk::Rng;

use crate::schema::{Schema, Type};
use crate::settings::{Room, happens};
use crate::values::draw::{below, pick};
use crate::values::notation::notated;
use crate::values::numbers;
use crate::values::words::{WORDS, word};

/// How much can be said beyond what must be.
pub(crate) const GENEROSITY_MAX: u32 = 3;

/// Values nested deeper than this hold no more than they must.
const GENEROUS_DEPTH: u32 = 4;

/// Schemas that lead deeper than this have no end.
const DEPTH_MAX: u32 = 40;

/// Nobody wants outputs of more bytes.
const BYTES_MAX: usize = 1 << 16;

/// A random document of a schema.
///
/// # Errors
/// When nothing can fit the schema, or nothing that is not too long.
pub(crate) fn document(schema: &Schema, rng: Rng, room: Room<'_>) -> Result<String, String> {
    let any = Schema::default();
    let mut writer = Writer { root: schema, any: &any, rng, room, depth: 0, text: String::new() };
    writer.value(schema)?;
    Ok(writer.text)
}

struct Writer<'a> {
    /// Root that references point into.
    root: &'a Schema,
    /// Of values that nothing is said about.
    any: &'a Schema,
    rng: Rng,
    room: Room<'a>,
    depth: u32,
    text: String,
}

impl<'a> Writer<'a> {
    fn value(&mut self, schema: &'a Schema) -> Result<(), String> {
        if self.depth == DEPTH_MAX {
            return Err(format!("the schema leads more than {DEPTH_MAX} values deep"));
        }
        if self.text.len() > BYTES_MAX {
            return Err(format!("the schema makes more than {BYTES_MAX} bytes"));
        }
        self.depth += 1;
        self.value_here(schema)?;
        self.depth -= 1;
        Ok(())
    }

    fn value_here(&mut self, schema: &'a Schema) -> Result<(), String> {
        if let Some(reference) = &schema.reference {
            return self.value(self.referred(reference)?);
        }
        if let Some(constant) = &schema.constant {
            self.text += &format!("{constant}");
            return Ok(());
        }
        if let Some(values) = &schema.values {
            let value = pick(values, &mut self.rng).ok_or("it has an empty `enum`")?;
            self.text += &format!("{value}");
            return Ok(());
        }
        let alternatives = schema.alternatives();
        if !alternatives.is_empty() {
            let least = alternatives.iter().min_by_key(|alternative| least(alternative));
            let chosen = if self.generosity() == 0 { least } else { pick(alternatives, &mut self.rng) };
            return chosen.map_or(Ok(()), |chosen| self.value(chosen));
        }
        let types = schema.types();
        let least = types.iter().min();
        match if self.generosity() == 0 { least } else { pick(types, &mut self.rng) } {
            Some(Type::Null) | None => self.text += "null",
            Some(Type::Boolean) => self.text += if below(&mut self.rng, 2) == 0 { "true" } else { "false" },
            Some(Type::Integer) => self.text += &numbers::integer(schema, self.room.settings.integers, &mut self.rng)?,
            Some(Type::Number) => self.text += &numbers::number(schema, self.room.settings.numbers, &mut self.rng)?,
            Some(Type::String) => self.string(schema)?,
            Some(Type::Array) => self.array(schema)?,
            Some(Type::Object) if schema.has_free_keys() => self.any_object()?,
            Some(Type::Object) => self.object(schema)?,
        }
        Ok(())
    }

    /// How much may be said here beyond what must be.
    fn generosity(&self) -> u32 {
        if self.depth > GENEROUS_DEPTH { 0 } else { self.room.generosity }
    }

    fn referred(&self, reference: &str) -> Result<&'a Schema, String> {
        if reference == "#" {
            return Ok(self.root);
        }
        let name = reference.strip_prefix("#/$defs/").or_else(|| reference.strip_prefix("#/definitions/"));
        let found = self.root.definitions.0.iter().find(|(defined, _)| Some(defined.as_str()) == name);
        found.map(|(_, schema)| schema).ok_or_else(|| format!("its `$ref` is `{reference}`, which is not in `$defs`"))
    }

    fn string(&mut self, schema: &Schema) -> Result<(), String> {
        let (shortest, longest) =
            (schema.min_length as usize, schema.max_length.map_or(BYTES_MAX, |most| most as usize));
        if shortest > longest || shortest > BYTES_MAX {
            return Err(format!("there is no string of {shortest} to {longest} characters"));
        }
        if let Some(pattern) = &schema.pattern {
            let generosity = self.generosity();
            let text = pattern.text_of_length(&mut self.rng, generosity, shortest, longest)?;
            self.text += &format!("{}", serde_json::Value::from(text));
            return Ok(());
        }
        if let Some(notation) = schema.format {
            self.text += &format!("{}", serde_json::Value::from(notated(notation, &mut self.rng)));
            return Ok(());
        }
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
        // One byte a character. Cut to what was wanted where words were only
        // there to fill it.
        text.truncate(if wanted == 0 { shortest } else { longest });
        self.text.push('"');
        self.text += &text;
        self.text.push('"');
        Ok(())
    }

    fn array(&mut self, schema: &'a Schema) -> Result<(), String> {
        let fewest = schema.min_items;
        let most = schema.max_items.unwrap_or(u32::MAX);
        if fewest > most {
            return Err(format!("there is no array of {fewest} to {most} items"));
        }
        let generosity = self.generosity();
        let (fewest, more) = match self.room.settings.array_items.filter(|_| generosity > 0) {
            None => (fewest, below(&mut self.rng, generosity + 1).min(most - fewest)),
            Some((usual_fewest, usual_most)) => {
                let fewest = if fewest == 0 { usual_fewest.min(most) } else { fewest };
                let most = schema.max_items.unwrap_or(usual_most).max(fewest);
                (fewest, below(&mut self.rng, most - fewest + 1))
            }
        };
        self.text.push('[');
        for index in 0..fewest + more {
            if index > 0 {
                self.text += ", ";
            }
            self.value(schema.items.as_deref().unwrap_or(self.any))?;
        }
        self.text.push(']');
        Ok(())
    }

    fn object(&mut self, schema: &'a Schema) -> Result<(), String> {
        let is_property = |name: &String| schema.properties.0.iter().any(|(property, _)| property == name);
        if let Some(missing) = schema.required.iter().find(|name| !is_property(name)) {
            return Err(format!("`required` names `{missing}`, which is not in `properties`"));
        }
        self.text.push('{');
        let mut is_first = true;
        for (name, property) in &schema.properties.0 {
            let is_optional = !schema.required.contains(name);
            if is_optional && (self.generosity() == 0 || !happens(self.optional_probability(), &mut self.rng)) {
                continue;
            }
            self.key(name, is_first);
            is_first = false;
            self.value(property)?;
        }
        self.text.push('}');
        Ok(())
    }

    /// Of a key that is not required. The arguments of a tool are those of the outermost
    /// object.
    fn optional_probability(&self) -> f64 {
        let settings = self.room.settings;
        let set = if self.depth <= 1 { settings.optional_arguments } else { settings.optional_fields };
        set.unwrap_or(0.5)
    }

    /// An object of random keys and values.
    fn any_object(&mut self) -> Result<(), String> {
        let generosity = self.generosity();
        let count = below(&mut self.rng, 2 * generosity + 1);
        // Neighbours, so that no key comes twice.
        let first = below(&mut self.rng, WORDS.len() as u32) as usize;
        self.text.push('{');
        for index in 0..count as usize {
            self.key(WORDS[(first + index) % WORDS.len()], index == 0);
            match below(&mut self.rng, 4) {
                0 if generosity > 0 => {
                    self.depth += 1;
                    self.any_object()?;
                    self.depth -= 1;
                }
                1 => self.array(self.any)?,
                _ => self.value(self.any)?,
            }
        }
        self.text.push('}');
        Ok(())
    }

    fn key(&mut self, name: &str, is_first: bool) {
        if !is_first {
            self.text += ", ";
        }
        self.text += &format!("{}: ", serde_json::Value::from(name));
    }
}

/// How little there is to write of a schema at least.
fn least(schema: &Schema) -> Type {
    if schema.constant.is_some() || schema.values.is_some() {
        return Type::Null;
    }
    if schema.reference.is_some() || !schema.alternatives().is_empty() {
        return Type::Object;
    }
    schema.types().iter().min().copied().unwrap_or(Type::Null)
}
