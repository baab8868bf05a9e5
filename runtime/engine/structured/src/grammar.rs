//! Generates texts of a grammar in the notation that vLLM sends to its backends: rules `name ::=
//! expression`, starting from the rule `root`.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::Rng;

use crate::values::draw::{below, pick};
use crate::values::pattern::Pattern;

const ROOT: &str = "root";

/// Rules nested deeper than this produce their shortest text.
const GENEROUS_DEPTH: u32 = 10;

/// Limits, so that a request cannot use up the fuel of a call: bytes
/// and rules of a grammar, bytes of a text, and parts visited while generating it.
const GRAMMAR_BYTES_MAX: usize = 16 << 10;
const RULES_MAX: usize = 200;
const TEXT_BYTES_MAX: usize = 8 << 10;
const STEPS_MAX: u32 = 20_000;

/// Rules nested deeper than this count as endless. The limit also applies to nested groups.
const DEPTH_MAX: u32 = 60;

#[derive(Debug)]
pub(crate) struct Grammar {
    rules: Vec<(String, Node)>,
    /// Minimum length of each rule's text in bytes. None if the text never ends.
    least: Vec<Option<u64>>,
}

#[derive(Debug)]
enum Node {
    Text(String),
    Class(Pattern),
    Sequence(Vec<Node>),
    /// Alternatives, the indices of those that can end, and the index of the shortest one.
    Alternatives {
        parts: Vec<Node>,
        ending: Vec<usize>,
        least: Option<usize>,
    },
    Repeat {
        part: Box<Node>,
        fewest: u32,
        most: u32,
    },
    /// The name of a rule, and its index once all rules have been parsed.
    Rule(String, usize),
}

impl Grammar {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > GRAMMAR_BYTES_MAX {
            return Err(format!("the grammar has {} bytes, but may have {GRAMMAR_BYTES_MAX}", text.len()));
        }
        let mut reader = Reader { rest: text, whole: text, depth: 0 };
        let rules = reader.rules().map_err(|problem| {
            let read = &text[..text.len() - reader.rest.len()];
            let line = 1 + read.matches('\n').count();
            format!("the grammar cannot be followed: line {line}: {problem}")
        })?;
        let mut grammar = Self { least: Vec::from_iter(rules.iter().map(|_| None)), rules };
        grammar.check().map_err(|problem| format!("the grammar cannot be followed: {problem}"))?;
        Ok(grammar)
    }

    /// Checks that every named rule exists and that a text can end.
    fn check(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.rules.iter().map(|(name, _)| name.clone()).collect();
        for (_, node) in &mut self.rules {
            resolve(node, &names)?;
        }
        // Each round finds the minimum lengths of rules that need one more level of other rules.
        loop {
            let least: Vec<Option<u64>> = self.rules.iter().map(|(_, node)| self.least(node)).collect();
            let is_settled = least.iter().zip(&self.least).all(|(now, before)| now.is_some() == before.is_some());
            self.least = least;
            if is_settled {
                break;
            }
        }
        let mut rules = core::mem::take(&mut self.rules);
        rules.iter_mut().for_each(|(_, node)| self.settle(node));
        self.rules = rules;
        match self.index(ROOT) {
            None => Err(format!("it has no rule `{ROOT}`")),
            Some(root) if self.least[root].is_none() => Err(format!("no text of the rule `{ROOT}` ever ends")),
            Some(_) => Ok(()),
        }
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.rules.iter().position(|(known, _)| known == name)
    }

    /// Finds which alternatives of a part can end, and the shortest one, once the rules are known.
    fn settle(&self, node: &mut Node) {
        match node {
            Node::Alternatives { parts, ending, least } => {
                let lengths: Vec<Option<u64>> = parts.iter().map(|part| self.least(part)).collect();
                *ending = (0..parts.len()).filter(|index| lengths[*index].is_some()).collect();
                *least = ending.iter().min_by_key(|index| lengths[**index]).copied();
                parts.iter_mut().for_each(|part| self.settle(part));
            }
            Node::Sequence(parts) => parts.iter_mut().for_each(|part| self.settle(part)),
            Node::Repeat { part, .. } => self.settle(part),
            Node::Text(_) | Node::Class(_) | Node::Rule(..) => {}
        }
    }

    /// Minimum length of a part in bytes, as far as the rules are known.
    fn least(&self, node: &Node) -> Option<u64> {
        match node {
            Node::Text(text) => Some(text.len() as u64),
            Node::Class(_) => Some(1),
            Node::Sequence(parts) => parts
                .iter()
                .map(|part| self.least(part))
                .try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?))),
            Node::Alternatives { parts, .. } => parts.iter().filter_map(|part| self.least(part)).min(),
            Node::Repeat { fewest: 0, .. } => Some(0),
            Node::Repeat { part, fewest, .. } => Some(self.least(part)?.saturating_mul(u64::from(*fewest))),
            Node::Rule(_, index) => self.least[*index],
        }
    }

    pub(crate) fn text(&self, rng: &mut Rng, generosity: u32) -> Result<String, String> {
        let mut text = Text::default();
        let root = self.index(ROOT).map(|index| &self.rules[index].1);
        root.map_or(Ok(()), |root| self.write(root, rng, generosity, 0, &mut text))?;
        Ok(text.written)
    }

    fn write(&self, node: &Node, rng: &mut Rng, generosity: u32, depth: u32, text: &mut Text) -> Result<(), String> {
        text.steps += 1;
        if text.written.len() > TEXT_BYTES_MAX || text.steps > STEPS_MAX {
            return Err(format!(
                "the grammar makes more than {TEXT_BYTES_MAX} bytes, or takes more than {STEPS_MAX} steps"
            ));
        }
        if depth > DEPTH_MAX {
            return Err(format!("the grammar leads more than {DEPTH_MAX} rules deep"));
        }
        let generosity = if depth > GENEROUS_DEPTH { 0 } else { generosity };
        match node {
            Node::Text(literal) => text.written += literal,
            Node::Class(class) => text.written += &class.text(rng, generosity, &mut text.steps)?,
            Node::Sequence(parts) => {
                parts.iter().try_for_each(|part| self.write(part, rng, generosity, depth, text))?;
            }
            Node::Alternatives { parts, ending, least } => {
                let chosen = if generosity == 0 { *least } else { pick(ending, rng).copied() };
                chosen.map_or(Ok(()), |chosen| self.write(&parts[chosen], rng, generosity, depth, text))?;
            }
            Node::Repeat { part, fewest, most } => {
                let more = below(rng, 2 * generosity + 1).min(most - fewest);
                for _ in 0..fewest + more {
                    self.write(part, rng, generosity, depth, text)?;
                }
            }
            Node::Rule(_, index) => self.write(&self.rules[*index].1, rng, generosity, depth + 1, text)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Text {
    written: String,
    steps: u32,
}

/// Sets the indices of the rules that a part names.
fn resolve(node: &mut Node, names: &[String]) -> Result<(), String> {
    match node {
        Node::Rule(name, index) => {
            let found = names.iter().position(|known| known == name);
            *index = found.ok_or_else(|| format!("there is no rule `{name}`"))?;
            Ok(())
        }
        Node::Sequence(parts) | Node::Alternatives { parts, .. } => {
            parts.iter_mut().try_for_each(|part| resolve(part, names))
        }
        Node::Repeat { part, .. } => resolve(part, names),
        Node::Text(_) | Node::Class(_) => Ok(()),
    }
}

/// The rest of a grammar's text that is still to be parsed.
struct Reader<'a> {
    rest: &'a str,
    whole: &'a str,
    depth: u32,
}

impl Reader<'_> {
    fn rules(&mut self) -> Result<Vec<(String, Node)>, String> {
        let mut rules: Vec<(String, Node)> = Vec::new();
        loop {
            self.skip();
            if self.rest.is_empty() {
                return Ok(rules);
            }
            let name = self.name().ok_or("a rule is expected, written `name ::= ...`")?;
            self.skip();
            if !self.take("::=") {
                return Err(format!("`{name}` is not a rule: rules are written `name ::= ...`"));
            }
            if rules.iter().any(|(known, _)| *known == name) {
                return Err(format!("there are two rules `{name}`"));
            }
            if rules.len() == RULES_MAX {
                return Err(format!("there are more than {RULES_MAX} rules"));
            }
            rules.push((name, self.alternatives()?));
        }
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("groups nest more than {DEPTH_MAX} deep"));
        }
        let mut all = Vec::from([self.sequence()?]);
        while self.take("|") {
            all.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if all.len() == 1 {
            all.remove(0)
        } else {
            Node::Alternatives { parts: all, ending: Vec::new(), least: None }
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut parts = Vec::new();
        loop {
            self.skip();
            let part = match self.rest.chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => {
                    self.advance(1);
                    let group = self.alternatives()?;
                    if !self.take(")") {
                        return Err("a group `(` has no end".into());
                    }
                    group
                }
                Some(first) if is_of_name(first) && !self.begins_a_rule() => match self.name() {
                    Some(name) => Node::Rule(name, 0),
                    None => return Ok(Node::Sequence(parts)),
                },
                Some('.' | '\'' | '/' | '&' | '!' | '@') => {
                    let what = self.rest.chars().next().unwrap_or_default();
                    return Err(format!(
                        "`{what}` is not supported: only literals, classes, groups, rules and `* + ? {{n,m}}`"
                    ));
                }
                _ => return Ok(Node::Sequence(parts)),
            };
            parts.push(self.repeated(part)?);
        }
    }

    /// Parses the repetition after a part, if any.
    fn repeated(&mut self, part: Node) -> Result<Node, String> {
        let (fewest, most) = match self.rest.chars().next() {
            Some('*') => (0, u32::MAX),
            Some('+') => (1, u32::MAX),
            Some('?') => (0, 1),
            Some('{') => return self.counted(part),
            _ => return Ok(part),
        };
        self.advance(1);
        Ok(Node::Repeat { part: Box::new(part), fewest, most })
    }

    fn counted(&mut self, part: Node) -> Result<Node, String> {
        let wrong = "a repetition is written `{n}`, `{n,}` or `{n,m}`";
        let end = self.rest.find('}').ok_or(wrong)?;
        let inside = &self.rest[1..end];
        let (fewest, most) = inside.split_once(',').unwrap_or((inside, inside));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong);
        let fewest = number(fewest)?;
        let most = if most.trim().is_empty() { u32::MAX } else { number(most)? };
        if fewest > most {
            return Err(format!("a repetition of {fewest} to {most} times is none"));
        }
        self.advance(end + 1);
        Ok(Node::Repeat { part: Box::new(part), fewest, most })
    }

    fn literal(&mut self) -> Result<Node, String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    self.advance(at + 1);
                    return Ok(Node::Text(text));
                }
                '\\' => text.push(escaped(&mut chars)?),
                '\n' => break,
                char => text.push(char),
            }
        }
        Err("a literal `\"` has no end".into())
    }

    /// Parses a class of characters, with the syntax of regular expressions.
    fn class(&mut self) -> Result<Node, String> {
        let mut is_escaped = false;
        let end = self.rest.char_indices().skip(1).find(|(_, char)| {
            let is_end = *char == ']' && !is_escaped;
            is_escaped = *char == '\\' && !is_escaped;
            is_end
        });
        let (end, _) = end.ok_or("a class `[` has no end")?;
        let class = Pattern::parse(&self.rest[..=end])?;
        self.advance(end + 1);
        Ok(Node::Class(class))
    }

    fn name(&mut self) -> Option<String> {
        let end = self.rest.find(|char| !is_of_name(char)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| String::from(name))
    }

    /// Whether a name and `::=` follow, which end the previous rule.
    fn begins_a_rule(&self) -> bool {
        let mut ahead = Reader { rest: self.rest, whole: self.whole, depth: 0 };
        let _ = ahead.name();
        ahead.skip();
        ahead.rest.starts_with("::=")
    }

    fn skip(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                return;
            }
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.advance(end);
        }
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }
}

fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-'
}

fn escaped(chars: &mut impl Iterator<Item = (usize, char)>) -> Result<char, String> {
    match chars.next().map(|(_, char)| char) {
        Some('n') => Ok('\n'),
        Some('r') => Ok('\r'),
        Some('t') => Ok('\t'),
        Some('x') => by_number(chars, 2),
        Some('u') => by_number(chars, 4),
        Some('U') => by_number(chars, 8),
        Some(plain @ ('"' | '\\' | '\'' | '/' | '[' | ']' | '-' | '?')) => Ok(plain),
        Some(other) => Err(format!("the escape `\\{other}` is not known")),
        None => Err("a literal `\"` has no end".into()),
    }
}

/// The character with the number that the next `digits` hexadecimal digits give.
fn by_number(chars: &mut impl Iterator<Item = (usize, char)>, digits: usize) -> Result<char, String> {
    let hex: String = chars.take(digits).map(|(_, char)| char).collect();
    let value = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
    value.and_then(char::from_u32).ok_or_else(|| format!("`{hex}` is not the number of a character"))
}
