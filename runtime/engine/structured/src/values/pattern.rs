//! Random texts that match a regular expression.

mod matching;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};
use vcr_guest_sdk::Rng;

use crate::values::draw::{below, pick};

/// Preferred characters of a class, in the order of preference: the readable ones.
const PREFERRED: [&[RangeInclusive<char>]; 2] = [&['a'..='z', 'A'..='Z', '0'..='9'], &[' '..='~']];

/// Number of tries per amount of optional text, if the length of a text does not fit.
const TRIES: u32 = 2;

/// Limits, so that a request cannot use up the fuel of a call: bytes
/// of a pattern, bytes of a text, and parts visited while generating it.
const PATTERN_BYTES_MAX: usize = 4 << 10;
const TEXT_BYTES_MAX: usize = 2 << 10;
const STEPS_MAX: u32 = 20_000;

const NESTING_MAX: u32 = 60;

/// Number of writing or matching steps that count as one unit of work.
const STEPS_OF_WORK: u32 = 16;

/// Number of texts that are tried to satisfy a pattern's lookarounds.
const LOOKING_TRIES: u32 = 24;

/// A regular expression, which texts must match as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    hir: Hir,
    /// Lookaheads at the start of a text, positive or negative.
    looks: Vec<Looked>,
    /// Whether a part of the pattern is not supported, so that a generated text may not match.
    is_partial: bool,
}

#[derive(Clone, Debug)]
struct Looked {
    hir: Hir,
    is_negative: bool,
}

impl Pattern {
    /// Parses the pattern of a schema, which may have lookarounds. None if the pattern is valid but not supported.
    pub(crate) fn of_schema(pattern: &str) -> Result<Option<Self>, String> {
        let split = split(pattern);
        let plain = match Self::parse(&split.rest) {
            Ok(plain) => plain,
            Err(_) if split.is_foreign => return Ok(None),
            Err(problem) => return Err(problem),
        };
        let (mut looks, mut is_partial) = (Vec::new(), split.is_partial);
        for (inner, is_negative) in split.at_start {
            let inner = self::split(&inner);
            match Self::parse(&inner.rest) {
                Ok(ahead) if inner.at_start.is_empty() && !inner.is_partial => {
                    looks.push(Looked { hir: ahead.hir, is_negative });
                }
                _ => is_partial = true,
            }
        }
        Ok(Some(Self { looks, is_partial, ..plain }))
    }

    /// Whether the pattern matches somewhere in a text. Adds the work to `work`.
    pub(crate) fn is_match(&self, text: &str, work: &mut u32) -> bool {
        matching::is_found(&self.hir, text, work) && self.looks.iter().all(|look| look.fits(text, work))
    }

    pub(crate) fn is_exact(&self) -> bool {
        !self.is_partial
    }

    pub(crate) fn parse(pattern: &str) -> Result<Self, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("a regular expression has {} bytes, but may have {PATTERN_BYTES_MAX}", pattern.len()));
        }
        let parsed = ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(pattern);
        let hir = parsed.map_err(|error| {
            // The full error message draws the pattern over several lines.
            let kind = match &error {
                regex_syntax::Error::Parse(error) => error.kind().to_string(),
                regex_syntax::Error::Translate(error) => error.kind().to_string(),
                other => other.to_string(),
            };
            format!("the regular expression `{pattern}` cannot be followed: {kind}")
        })?;
        Ok(Self { hir, looks: Vec::new(), is_partial: false })
    }

    pub(crate) fn text(&self, rng: &mut Rng, generosity: u32, work: &mut u32) -> Result<String, String> {
        let text = written(&self.hir, rng, generosity, work)?;
        if self.looks.iter().all(|look| look.fits(&text, work)) {
            return Ok(text);
        }
        self.looked(rng, generosity, work)
    }

    fn looked(&self, rng: &mut Rng, generosity: u32, work: &mut u32) -> Result<String, String> {
        for tried in 0..LOOKING_TRIES {
            let text = written(&self.hir, rng, generosity + tried / 4, work)?;
            // Texts that the lookarounds want, to be put before or after the text.
            let mut wanted = String::new();
            for look in self.looks.iter().filter(|look| !look.is_negative) {
                if !look.fits(&text, work) {
                    wanted += &written(&look.hir, rng, 0, work).unwrap_or_default();
                }
            }
            for candidate in [text.clone(), format!("{text}{wanted}"), format!("{wanted}{text}"), wanted] {
                if candidate.len() <= TEXT_BYTES_MAX && self.is_match(&candidate, work) {
                    return Ok(candidate);
                }
            }
        }
        // If the lookarounds cannot be satisfied, the text follows the rest of the pattern.
        written(&self.hir, rng, generosity, work)
    }

    /// A random text that matches and has a number of characters within bounds.
    pub(crate) fn text_of_length(
        &self,
        rng: &mut Rng,
        generosity: u32,
        (fewest, most): (usize, usize),
        work: &mut u32,
    ) -> Result<String, String> {
        let fits = |text: &String| (fewest..=most).contains(&text.chars().count());
        let shortest = self.hir.properties().minimum_len().unwrap_or(0);
        if shortest > most.saturating_mul(4) || self.hir.properties().maximum_len().is_some_and(|bytes| bytes < fewest)
        {
            return Err(format!("no text of {fewest} to {most} characters matches the `pattern`"));
        }
        // First with the wanted amount of optional text, then with at least the required amount, then as short as
        // possible.
        let enough = u32::try_from(fewest).unwrap_or(u32::MAX);
        for tried in [generosity, enough.saturating_add(generosity), enough, 0] {
            for _ in 0..TRIES {
                let text = self.text(rng, tried, work)?;
                if fits(&text) {
                    return Ok(text);
                }
            }
        }
        Err(format!("no text of {fewest} to {most} characters was found that matches the `pattern`"))
    }
}

impl Looked {
    fn fits(&self, text: &str, work: &mut u32) -> bool {
        matching::is_prefix(&self.hir, text, work) != self.is_negative
    }
}

fn written(hir: &Hir, rng: &mut Rng, generosity: u32, work: &mut u32) -> Result<String, String> {
    let mut text = Text { written: String::new(), has_ended: false, generosity, steps: 0 };
    let result = text.write(hir, rng);
    *work += 1 + text.steps / STEPS_OF_WORK;
    result.map(|()| text.written)
}

struct Text {
    written: String,
    has_ended: bool,
    generosity: u32,
    steps: u32,
}

impl Text {
    fn write(&mut self, hir: &Hir, rng: &mut Rng) -> Result<(), String> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(format!("a pattern takes more than {STEPS_MAX} steps"));
        }
        match hir.kind() {
            HirKind::Empty => Ok(()),
            HirKind::Literal(literal) => {
                let text = core::str::from_utf8(&literal.0)
                    .map_err(|_| String::from("a pattern matches bytes that are not text"))?;
                self.push(text)
            }
            HirKind::Class(class) => {
                let chosen = character(class, rng)?;
                self.push(chosen.encode_utf8(&mut [0; 4]))
            }
            HirKind::Look(Look::Start) if self.written.is_empty() => Ok(()),
            HirKind::Look(Look::End) => {
                self.has_ended = true;
                Ok(())
            }
            HirKind::Look(_) => Err("a pattern has an anchor or a word boundary inside, which is not supported".into()),
            HirKind::Repetition(repetition) => self.repeat(repetition, rng),
            HirKind::Capture(capture) => self.write(&capture.sub, rng),
            HirKind::Concat(parts) => parts.iter().try_for_each(|part| self.write(part, rng)),
            HirKind::Alternation(alternatives) => {
                let least = alternatives.iter().min_by_key(|alternative| alternative.properties().minimum_len());
                let chosen = if self.generosity == 0 { least } else { pick(alternatives, rng) };
                chosen.map_or(Ok(()), |chosen| self.write(chosen, rng))
            }
        }
    }

    fn repeat(&mut self, repetition: &Repetition, rng: &mut Rng) -> Result<(), String> {
        let fewest = repetition.min;
        let most = repetition.max.unwrap_or(u32::MAX);
        let more = below(rng, self.generosity.saturating_mul(2).saturating_add(1)).min(most - fewest);
        for _ in 0..fewest.saturating_add(more) {
            self.write(&repetition.sub, rng)?;
            // Repetitions of an empty text stay empty.
            if repetition.sub.properties().maximum_len() == Some(0) {
                break;
            }
        }
        Ok(())
    }

    fn push(&mut self, text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        if self.has_ended {
            return Err("a pattern continues behind its end `$`".into());
        }
        self.written += text;
        if self.written.len() > TEXT_BYTES_MAX {
            return Err(format!("a pattern makes more than {TEXT_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

/// A character of a class, if possible a readable one.
fn character(class: &Class, rng: &mut Rng) -> Result<char, String> {
    let nothing = || String::from("a pattern has a class of no characters");
    let Class::Unicode(class) = class else {
        return Err("a pattern matches bytes instead of characters".into());
    };
    let ranges = || class.ranges().iter().map(|range| range.start()..=range.end());
    for preferred in PREFERRED {
        // Ranges ascend, so the ASCII ranges come first.
        let low = || ranges().take_while(|range| range.start().is_ascii());
        let shared = || low().flat_map(|range| preferred.iter().filter_map(move |good| overlap(&range, good)));
        let count: u32 = shared().map(|range| size(&range)).sum();
        if count > 0 {
            return nth(shared(), below(rng, count)).ok_or_else(nothing);
        }
    }
    let count: u32 = ranges().map(|range| size(&range)).sum();
    if count == 0 {
        return Err(nothing());
    }
    nth(ranges(), below(rng, count)).ok_or_else(nothing)
}

fn overlap(one: &RangeInclusive<char>, other: &RangeInclusive<char>) -> Option<RangeInclusive<char>> {
    let shared = *one.start().max(other.start())..=*one.end().min(other.end());
    (!shared.is_empty()).then_some(shared)
}

fn size(range: &RangeInclusive<char>) -> u32 {
    range.clone().count() as u32
}

/// The character at `index` in all ranges, one after another.
fn nth(ranges: impl Iterator<Item = RangeInclusive<char>>, mut index: u32) -> Option<char> {
    for mut range in ranges {
        let size = size(&range);
        if index < size {
            return range.nth(index as usize);
        }
        index -= size;
    }
    None
}

/// A pattern split into lookarounds and the rest.
struct Split {
    rest: String,
    /// The lookarounds at the start, and whether each is negative.
    at_start: Vec<(String, bool)>,
    /// Whether there are other lookarounds.
    is_partial: bool,
    /// Whether there are parts that only other regex engines support.
    is_foreign: bool,
}

fn split(pattern: &str) -> Split {
    let mut split =
        Split { rest: String::new(), at_start: Vec::new(), is_partial: false, is_foreign: is_foreign(pattern) };
    let mut rest = pattern;
    let mut is_in_class = false;
    while let Some(first) = rest.chars().next() {
        let look = ["(?=", "(?!", "(?<=", "(?<!"].into_iter().find(|look| !is_in_class && rest.starts_with(look));
        if let Some((look, end)) = look.and_then(|look| Some((look, group_end(rest)?))) {
            let inner = &rest[look.len()..end - 1];
            if look.len() == 3 && ["", "^"].contains(&split.rest.as_str()) {
                split.at_start.push((inner.into(), look == "(?!"));
            } else {
                split.is_partial = true;
            }
            rest = &rest[end..];
            continue;
        }
        is_in_class = match first {
            '[' => true,
            ']' => false,
            _ => is_in_class,
        };
        // A backslash stays with the next character.
        let length = match first {
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            first => first.len_utf8(),
        };
        split.rest += &rest[..length];
        rest = &rest[length..];
    }
    split
}

fn group_end(text: &str) -> Option<usize> {
    let (mut depth, mut is_in_class, mut is_escaped) = (0, false, false);
    for (at, char) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        match char {
            '\\' => is_escaped = true,
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '(' if !is_in_class => depth += 1,
            ')' if !is_in_class => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn is_foreign(pattern: &str) -> bool {
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        if char == '\\' && matches!(chars.next(), Some('1'..='9' | 'k' | 'p' | 'P' | 'c')) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pattern_looks_at_is_found() {
        for text in [
            "^(?=.*[A-Z]).{8,}$",
            "^(?=.*[a-z])(?=.*\\d)(?=.*[!@#]).{8,20}$",
            "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$",
            "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
            "^(?!mailto:)[a-z]+$",
            "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?)$",
        ] {
            let pattern = Pattern::of_schema(text).expect(text).expect(text);
            for seed in 0..40 {
                for generosity in 0..4 {
                    let made = pattern.text(&mut Rng::new(seed, 0), generosity, &mut 0).expect(text);
                    assert!(pattern.is_match(&made, &mut 0), "{made} for {text}");
                }
            }
        }
        let password = Pattern::of_schema("^(?=.*[A-Z]).{8,}$").expect("a pattern").expect("a pattern");
        for (text, is_match) in [("abcdEfgh", true), ("abcdefgh", false), ("aB", false)] {
            assert_eq!(password.is_match(text, &mut 0), is_match, "{text}");
        }
        assert!(Pattern::of_schema("(a)\\1").expect("another program's").is_none());
        assert!(Pattern::of_schema("(a").is_err());
    }
}
