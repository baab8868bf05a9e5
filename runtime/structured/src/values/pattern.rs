//! Texts that match a regular expression.

use alloc::format;
use alloc::string::{String, ToString};
use core::ops::RangeInclusive;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};
use vcr_guest_sdk::Rng;

use crate::values::draw::{below, pick};

/// Characters that are taken where a class has any of them, the best first: what
/// people expect to read.
const PREFERRED: [&[RangeInclusive<char>]; 2] = [&['a'..='z', 'A'..='Z', '0'..='9'], &[' '..='~']];

/// How often a text is made anew where its length does not fit, by each amount that
/// is tried.
const TRIES: u32 = 2;

/// A request must not use up the fuel of a call, so patterns and what is made of them
/// are bounded: bytes of a pattern, bytes of a text, parts that are gone through.
const PATTERN_BYTES_MAX: usize = 4 << 10;
const TEXT_BYTES_MAX: usize = 2 << 10;
const STEPS_MAX: u32 = 20_000;

/// The deepest nesting of groups that is read.
const NESTING_MAX: u32 = 60;

/// A regular expression. A text of it matches as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Hir);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What of it is not understood, in words.
    pub(crate) fn parse(pattern: &str) -> Result<Self, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("a regular expression has {} bytes, but may have {PATTERN_BYTES_MAX}", pattern.len()));
        }
        let parsed = ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(pattern);
        let hir = parsed.map_err(|error| {
            // The whole message draws the pattern over several lines.
            let kind = match &error {
                regex_syntax::Error::Parse(error) => error.kind().to_string(),
                regex_syntax::Error::Translate(error) => error.kind().to_string(),
                other => other.to_string(),
            };
            format!("the regular expression `{pattern}` cannot be followed: {kind}")
        })?;
        Ok(Self(hir))
    }

    /// A random text that matches.
    ///
    /// # Errors
    /// When nothing can match, or nothing that is not too long.
    pub(crate) fn text(&self, rng: &mut Rng, generosity: u32) -> Result<String, String> {
        let mut text = Text { written: String::new(), has_ended: false, generosity, steps: 0 };
        text.write(&self.0, rng)?;
        Ok(text.written)
    }

    /// The same with a number of characters within bounds.
    ///
    /// # Errors
    /// When none is found.
    pub(crate) fn text_of_length(
        &self,
        rng: &mut Rng,
        generosity: u32,
        fewest: usize,
        most: usize,
    ) -> Result<String, String> {
        let fits = |text: &String| (fewest..=most).contains(&text.chars().count());
        let shortest = self.0.properties().minimum_len().unwrap_or(0);
        if shortest > most.saturating_mul(4) || self.0.properties().maximum_len().is_some_and(|bytes| bytes < fewest) {
            return Err(format!("no text of {fewest} to {most} characters matches the `pattern`"));
        }
        // First as much as is to be said, then what is needed and more, then as little.
        let enough = u32::try_from(fewest).unwrap_or(u32::MAX);
        for tried in [generosity, enough.saturating_add(generosity), enough, 0] {
            for _ in 0..TRIES {
                let text = self.text(rng, tried)?;
                if fits(&text) {
                    return Ok(text);
                }
            }
        }
        Err(format!("no text of {fewest} to {most} characters was found that matches the `pattern`"))
    }
}

/// A text under way.
struct Text {
    written: String,
    /// The pattern says that it ends here.
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
            // Nothing, however often, is still nothing.
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

/// A character of a class, one that reads well if it has any.
fn character(class: &Class, rng: &mut Rng) -> Result<char, String> {
    let nothing = || String::from("a pattern has a class of no characters");
    let Class::Unicode(class) = class else {
        return Err("a pattern matches bytes instead of characters".into());
    };
    let ranges = || class.ranges().iter().map(|range| range.start()..=range.end());
    for preferred in PREFERRED {
        // Ranges rise, and what is preferred is ASCII.
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

/// Character `index` of all ranges, one after another.
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

/// Reads a pattern that is written as a text.
pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Pattern, D::Error> {
    Pattern::parse(&<String as serde::Deserialize>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}
