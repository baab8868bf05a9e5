//! Parses schemas.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::check::has_type;
use super::{
    ANY, ArrayRule, Condition, Contains, NOTHING, Notation, ObjectRule, PATTERNS_MAX, Place, Property, SCHEMAS_MAX,
    Schema, Schemas, StringRule, Type, nothing, too_many,
};
use crate::node::Node;
use crate::values::numbers::Range;
use crate::values::pattern::Pattern;

impl Schemas {
    /// Parses a schema in strict mode: it must be one that vLLM's backends accept.
    pub(crate) fn strict(document: &Node) -> Result<Self, String> {
        Reader::new(document, true).schemas()
    }

    /// Parses a schema in lenient mode: parts that are wrong or unknown have no effect.
    pub(crate) fn lenient(document: &Node) -> Self {
        Reader::new(document, false).schemas().unwrap_or_else(|_| Self::any_object())
    }
}

struct Reader<'a> {
    document: &'a Node,
    is_strict: bool,
    all: Vec<Schema>,
    patterns: usize,
    referred: BTreeMap<&'a str, Place>,
    /// Schemas that are still to be parsed.
    open: Vec<(&'a Node, Place)>,
    /// Schemas by their own names. None until a reference needs them.
    named: Option<BTreeMap<String, &'a Node>>,
    /// Entries, by key, of the objects that paths of references lead through. The outer key is the object's address in
    /// memory.
    entries: BTreeMap<usize, BTreeMap<&'a str, &'a Node>>,
}

impl<'a> Reader<'a> {
    fn new(document: &'a Node, is_strict: bool) -> Self {
        let all = Vec::from([Schema::default(), nothing()]);
        let (referred, entries) = (BTreeMap::new(), BTreeMap::new());
        Self { document, is_strict, all, patterns: 0, referred, open: Vec::new(), named: None, entries }
    }

    fn schemas(mut self) -> Result<Schemas, String> {
        let root = self.place(self.document)?;
        while let Some((node, place)) = self.open.pop() {
            let schema = self.schema(node)?;
            self.all[place as usize] = schema;
        }
        let least =
            |places: &[Place]| places.iter().min_by_key(|place| self.all[**place as usize].least_type()).copied();
        let all_least: Vec<_> = self.all.iter().map(|schema| [least(&schema.any_of), least(&schema.one_of)]).collect();
        for (schema, least) in self.all.iter_mut().zip(all_least) {
            schema.least = least;
        }
        Ok(Schemas { all: self.all, root })
    }

    /// Returns an error in strict mode, and otherwise `otherwise`.
    fn problem<T>(&self, otherwise: T, problem: impl FnOnce() -> String) -> Result<T, String> {
        if self.is_strict { Err(problem()) } else { Ok(otherwise) }
    }

    /// Reserves the index of a schema that is parsed later, which avoids deep recursion.
    fn place(&mut self, node: &'a Node) -> Result<Place, String> {
        match node {
            Node::Bool(true) => Ok(ANY),
            Node::Bool(false) => Ok(NOTHING),
            Node::Object(keywords) if keywords.is_empty() => Ok(ANY),
            Node::Object(_) => {
                if self.all.len() >= SCHEMAS_MAX {
                    return Err(too_many());
                }
                let place = self.all.len() as Place;
                self.all.push(Schema::default());
                self.open.push((node, place));
                Ok(place)
            }
            other => self.problem(ANY, || format!("`{}` is not a schema", shortened(other))),
        }
    }

    fn places(&mut self, node: &'a Node, keyword: &str) -> Result<Vec<Place>, String> {
        match node.as_array() {
            Some(nodes) => nodes.iter().map(|node| self.place(node)).collect(),
            None => self.problem(Vec::new(), || format!("`{keyword}` is not a list of schemas")),
        }
    }

    fn schema(&mut self, node: &'a Node) -> Result<Schema, String> {
        let types = self.types(node)?;
        let mut schema = Schema {
            values: self.values(node, &types)?,
            types,
            reference: self.reference(node)?,
            not: node.get("not").map(|node| self.place(node)).transpose()?,
            condition: self.condition(node)?,
            number: self.number(node)?,
            string: self.string(node)?,
            array: self.array(node)?,
            object: self.object(node)?,
            ..Schema::default()
        };
        for (keyword, list) in
            [("allOf", &mut schema.all_of), ("anyOf", &mut schema.any_of), ("oneOf", &mut schema.one_of)]
        {
            if let Some(node) = node.get(keyword) {
                *list = self.places(node, keyword)?;
            }
        }
        Ok(schema)
    }

    fn types(&self, node: &Node) -> Result<Vec<Type>, String> {
        let Some(given) = node.get("type") else { return Ok(Vec::new()) };
        let names = given.as_array().unwrap_or(core::slice::from_ref(given));
        let mut types = Vec::new();
        for name in names {
            match name.as_str().and_then(Type::named) {
                Some(one) if types.contains(&one) => {}
                Some(one) => types.push(one),
                None => self.problem((), || format!("`{}` is not a type", shortened(name)))?,
            }
        }
        Ok(types)
    }

    /// The values of `const` or `enum` that have an allowed type.
    fn values(&self, node: &Node, types: &[Type]) -> Result<Option<Vec<Node>>, String> {
        let values = match (node.get("const"), node.get("enum").map(Node::as_array)) {
            (Some(constant), _) => core::slice::from_ref(constant),
            (None, Some(Some(values))) => values,
            (None, Some(None)) => return self.problem(None, || "`enum` is not a list".into()),
            (None, None) => return Ok(None),
        };
        let is_typed = |value: &&Node| types.is_empty() || types.iter().any(|one| has_type(*one, value));
        let fitting: Vec<Node> = values.iter().filter(is_typed).cloned().collect();
        if values.is_empty() {
            return self.problem(None, || "it has an empty `enum`".into());
        }
        // With OpenAPI's `nullable`, the type may exclude null. vLLM then follows the values.
        Ok(Some(if fitting.is_empty() { values.to_vec() } else { fitting }))
    }

    fn condition(&mut self, node: &'a Node) -> Result<Option<Box<Condition>>, String> {
        let Some(given) = node.get("if") else { return Ok(None) };
        let given = self.place(given)?;
        let mut branch = |keyword| node.get(keyword).map_or(Ok(ANY), |node| self.place(node));
        Ok(Some(Box::new(Condition { given, then: branch("then")?, otherwise: branch("else")? })))
    }

    fn count(&self, node: &Node, keyword: &str) -> Result<Option<u32>, String> {
        match node.get(keyword) {
            None => Ok(None),
            Some(given) => match given.as_u32() {
                // No value has so many characters, items or properties.
                None if given.as_f64().is_some_and(|count| count > 0.0) => Ok(Some(u32::MAX)),
                None => self.problem(None, || format!("`{keyword}` is `{}`, not a count", shortened(given))),
                count => Ok(count),
            },
        }
    }

    fn counts(&self, node: &Node, keywords: [&str; 2]) -> Result<(u32, Option<u32>), String> {
        let fewest = self.count(node, keywords[0])?.unwrap_or(0);
        let most = self.count(node, keywords[1])?;
        match most {
            Some(most) if most < fewest => self.problem((fewest, None), || {
                format!("`{}` is {fewest}, more than `{}`, which is {most}", keywords[0], keywords[1])
            }),
            _ => Ok((fewest, most)),
        }
    }

    fn number(&self, node: &Node) -> Result<Option<Box<Range>>, String> {
        let range = Range::read(node);
        if range.is_empty() {
            return self.problem(None, || format!("there is no number {range}"));
        }
        Ok(range.binds().then(|| Box::new(range)))
    }

    fn pattern(&mut self, text: &str) -> Result<Option<Pattern>, String> {
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX {
            return Err(too_many());
        }
        match Pattern::of_schema(text) {
            Ok(pattern) => Ok(pattern),
            Err(problem) => self.problem(None, || problem),
        }
    }

    fn string(&mut self, node: &Node) -> Result<Option<Box<StringRule>>, String> {
        let (shortest, longest) = self.counts(node, ["minLength", "maxLength"])?;
        let text = |keyword: &str| node.get(keyword).and_then(Node::as_str);
        let format = text("format").and_then(Notation::named).or_else(|| match text("contentEncoding") {
            Some("base64") => Some(Notation::Base64),
            _ => None,
        });
        let pattern = text("pattern").map_or(Ok(None), |text| self.pattern(text))?;
        let binds = shortest > 0 || longest.is_some() || pattern.is_some() || format.is_some();
        Ok(binds.then(|| Box::new(StringRule { shortest, longest, pattern, format })))
    }

    fn array(&mut self, node: &'a Node) -> Result<Option<Box<ArrayRule>>, String> {
        let (fewest, most) = self.counts(node, ["minItems", "maxItems"])?;
        let mut rule = ArrayRule { fewest, most, ..ArrayRule::default() };
        rule.is_unique = matches!(node.get("uniqueItems"), Some(Node::Bool(true)));
        // Older drafts have a list in `items`, and `additionalItems` for the rest.
        let (first, rest) = match node.get("items") {
            Some(list @ Node::Array(_)) => (Some(list), "additionalItems"),
            _ => (node.get("prefixItems"), "items"),
        };
        if let Some(first) = first {
            rule.first = self.places(first, "prefixItems")?;
        }
        rule.items = match node.get(rest).or_else(|| node.get("unevaluatedItems")) {
            Some(items) => Some(self.place(items)?),
            None => None,
        };
        if let Some(contains) = node.get("contains") {
            let (fewest, most) = self.counts(node, ["minContains", "maxContains"])?;
            let fewest = if node.get("minContains").is_some() { fewest } else { 1 };
            rule.contains = Some(Contains { place: self.place(contains)?, fewest, most: most.unwrap_or(u32::MAX) });
        }
        let binds = !rule.first.is_empty() || rule.items.is_some() || fewest > 0 || most.is_some();
        Ok((binds || rule.is_unique || rule.contains.is_some()).then(|| Box::new(rule)))
    }

    fn object(&mut self, node: &'a Node) -> Result<Option<Box<ObjectRule>>, String> {
        let (fewest, most) = self.counts(node, ["minProperties", "maxProperties"])?;
        let mut rule = ObjectRule { fewest, most, ..ObjectRule::default() };
        rule.properties = self.properties(node)?;
        let mut further = |keyword| node.get(keyword).map(|node| self.place(node)).transpose();
        rule.further = further("additionalProperties")?;
        rule.unevaluated = further("unevaluatedProperties")?;
        if let Some(Node::Object(entries)) = node.get("patternProperties") {
            for (pattern, value) in entries {
                let place = self.place(value)?;
                rule.patterns.extend(self.pattern(pattern)?.map(|pattern| (pattern, place)));
            }
        }
        rule.names = node.get("propertyNames").map(|node| self.place(node)).transpose()?;
        self.dependencies(node, &mut rule)?;
        let describes_others = rule.further.is_some() || rule.unevaluated.is_some() || !rule.patterns.is_empty();
        let binds = !rule.properties.is_empty() || describes_others;
        let counts = fewest > 0 || most.is_some();
        Ok((binds || counts || rule.names.is_some() || !rule.dependent.is_empty()).then(|| Box::new(rule)))
    }

    fn properties(&mut self, node: &'a Node) -> Result<Vec<Property>, String> {
        let mut properties: Vec<Property> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        match node.get("properties") {
            None => {}
            Some(Node::Object(entries)) => {
                for (name, value) in entries {
                    let place = Some(self.place(value)?);
                    match known.get(name.as_str()) {
                        Some(index) => properties[*index].place = place,
                        None => {
                            known.insert(name, properties.len());
                            properties.push(Property { name: name.clone(), place, is_required: false });
                        }
                    }
                }
            }
            Some(_) => self.problem((), || "`properties` is not an object".into())?,
        }
        let required = match node.get("required") {
            Some(Node::Array(names)) => names,
            // In the oldest drafts, `required` is part of the property.
            _ => &Vec::new(),
        };
        for name in required.iter().filter_map(Node::as_str) {
            match known.get(name) {
                Some(index) => properties[*index].is_required = true,
                None => {
                    known.insert(name, properties.len());
                    properties.push(Property { name: name.into(), place: None, is_required: true });
                }
            }
        }
        Ok(properties)
    }

    /// Parses `dependentRequired`, `dependentSchemas`, and the older `dependencies`, which combines both.
    fn dependencies(&mut self, node: &'a Node, rule: &mut ObjectRule) -> Result<(), String> {
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(Node::Object(entries)) = node.get(keyword) else { continue };
            for (name, needed) in entries {
                let place = match needed {
                    Node::Array(names) => self.requiring(names.iter().filter_map(Node::as_str))?,
                    schema => self.place(schema)?,
                };
                rule.dependent.push((name.clone(), place));
            }
        }
        Ok(())
    }

    fn requiring<'b>(&mut self, names: impl Iterator<Item = &'b str>) -> Result<Place, String> {
        if self.all.len() >= SCHEMAS_MAX {
            return Err(too_many());
        }
        let required = |name: &str| Property { name: name.into(), place: None, is_required: true };
        let rule = ObjectRule { properties: names.map(required).collect(), ..ObjectRule::default() };
        self.all.push(Schema { object: Some(Box::new(rule)), ..Schema::default() });
        Ok(self.all.len() as Place - 1)
    }

    fn reference(&mut self, node: &'a Node) -> Result<Option<Place>, String> {
        let given = ["$ref", "$dynamicRef", "$recursiveRef"].into_iter().find_map(|keyword| node.get(keyword));
        let Some(reference) = given.and_then(Node::as_str) else { return Ok(None) };
        if let Some(place) = self.referred.get(reference) {
            return Ok(Some(*place));
        }
        let Some(found) = self.find(reference) else {
            return self.problem(None, || format!("its `$ref` is `{reference}`, which it does not have"));
        };
        let place = self.place(found)?;
        self.referred.insert(reference, place);
        Ok(Some(place))
    }

    /// The target of a reference, which is a path from the root or a schema's own name.
    fn find(&mut self, reference: &str) -> Option<&'a Node> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = match document {
            "" => self.document,
            name => self.named(name)?,
        };
        match fragment {
            "" => Some(base),
            path if path.starts_with('/') => path[1..].split('/').try_fold(base, |node, step| {
                let step = unescaped(step);
                match node {
                    Node::Array(items) => items.get(step.parse::<usize>().ok()?),
                    Node::Object(entries) => {
                        let address = core::ptr::from_ref(node) as usize;
                        let index = || entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
                        self.entries.entry(address).or_insert_with(index).get(step.as_str()).copied()
                    }
                    _ => None,
                }
            }),
            anchor => self.named(&format!("#{anchor}")),
        }
    }

    fn named(&mut self, name: &str) -> Option<&'a Node> {
        let document = self.document;
        let named = self.named.get_or_insert_with(|| {
            let mut named = BTreeMap::new();
            let mut open = Vec::from([document]);
            while let Some(node) = open.pop() {
                match node {
                    Node::Object(entries) => {
                        for keyword in ["$id", "id"] {
                            if let Some(id) = node.get(keyword).and_then(Node::as_str) {
                                named.insert(id.trim_end_matches('#').to_string(), node);
                            }
                        }
                        for keyword in ["$anchor", "$dynamicAnchor"] {
                            if let Some(anchor) = node.get(keyword).and_then(Node::as_str) {
                                named.insert(format!("#{anchor}"), node);
                            }
                        }
                        open.extend(entries.iter().map(|(_, value)| value));
                    }
                    Node::Array(items) => open.extend(items),
                    _ => {}
                }
            }
            named
        });
        named.get(name).copied()
    }
}

/// Removes the escapes from a step of a reference's path.
fn unescaped(step: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = step.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = behind.get(..2).and_then(|digits| core::str::from_utf8(digits).ok());
        let byte = hex.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

/// The beginning of a value, for a message.
fn shortened(node: &Node) -> String {
    format!("{node}").chars().take(60).collect()
}
