//! Matches texts against patterns by backtracking, which is fast enough because texts are short.

use alloc::vec::Vec;

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::STEPS_OF_WORK;

/// Longer texts are not checked and count as matching.
const CHARS_MAX: usize = 500;
/// Maximum number of steps for a text. A text that needs more counts as matching.
const STEPS_MAX: u32 = 20_000;

pub(super) fn is_found(hir: &Hir, text: &str, work: &mut u32) -> bool {
    let mut matching = Matching::new(text);
    let is_found = (0..=matching.text.len()).any(|at| matching.matches(hir, at, &mut |_, _| true));
    *work += 1 + matching.steps / STEPS_OF_WORK;
    is_found
}

pub(super) fn is_prefix(hir: &Hir, text: &str, work: &mut u32) -> bool {
    let mut matching = Matching::new(text);
    let is_prefix = matching.matches(hir, 0, &mut |_, _| true);
    *work += 1 + matching.steps / STEPS_OF_WORK;
    is_prefix
}

struct Matching {
    text: Vec<char>,
    steps: u32,
}

/// Called with the end of a match. Returns whether the rest matches.
type Then<'a> = &'a mut dyn FnMut(&mut Matching, usize) -> bool;

impl Matching {
    fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().collect();
        let steps = if text.len() > CHARS_MAX { STEPS_MAX } else { 0 };
        Self { text, steps }
    }

    fn matches(&mut self, hir: &Hir, at: usize, then: Then<'_>) -> bool {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return true;
        }
        match hir.kind() {
            HirKind::Empty => then(self, at),
            HirKind::Literal(literal) => {
                let Ok(literal) = core::str::from_utf8(&literal.0) else { return false };
                let length = literal.chars().count();
                let is_same =
                    self.text.get(at..at + length).is_some_and(|text| literal.chars().eq(text.iter().copied()));
                is_same && then(self, at + length)
            }
            HirKind::Class(class) => self.has(class, at) && then(self, at + 1),
            HirKind::Look(look) => self.looks(*look, at) && then(self, at),
            HirKind::Capture(capture) => self.matches(&capture.sub, at, then),
            HirKind::Concat(parts) => self.sequence(parts, at, then),
            HirKind::Alternation(parts) => parts.iter().any(|part| self.matches(part, at, then)),
            HirKind::Repetition(repetition) => {
                let (fewest, most) = (repetition.min, repetition.max.unwrap_or(u32::MAX));
                match repetition.sub.kind() {
                    // Most repetitions are of single characters, which need no recursion.
                    HirKind::Class(class) => {
                        let end = (at..self.text.len()).take(most as usize).find(|at| !self.has(class, *at));
                        let end = end.unwrap_or_else(|| self.text.len().min(at.saturating_add(most as usize)));
                        (at + (fewest as usize).min(end - at + 1)..=end).rev().any(|end| {
                            self.steps += 1;
                            then(self, end)
                        })
                    }
                    _ => self.repetition(&repetition.sub, (fewest, most), at, then),
                }
            }
        }
    }

    fn sequence(&mut self, parts: &[Hir], at: usize, then: Then<'_>) -> bool {
        match parts {
            [] => then(self, at),
            [first, rest @ ..] => self.matches(first, at, &mut |matching, at| matching.sequence(rest, at, &mut *then)),
        }
    }

    fn repetition(&mut self, part: &Hir, (fewest, most): (u32, u32), at: usize, then: Then<'_>) -> bool {
        let once_more = (fewest.saturating_sub(1), most.saturating_sub(u32::from(most != u32::MAX)));
        let again = most > 0
            && self.matches(part, at, &mut |matching, end| {
                // An empty match could be repeated endlessly.
                (end > at || fewest > 0) && matching.repetition(part, once_more, end, &mut *then)
            });
        again || fewest == 0 && then(self, at)
    }

    fn has(&self, class: &Class, at: usize) -> bool {
        let Some(char) = self.text.get(at) else { return false };
        match class {
            Class::Unicode(class) => class.iter().any(|range| (range.start()..=range.end()).contains(char)),
            Class::Bytes(class) => {
                class.iter().any(|range| (char::from(range.start())..=char::from(range.end())).contains(char))
            }
        }
    }

    fn looks(&self, look: Look, at: usize) -> bool {
        let is_word = |char: Option<&char>| char.is_some_and(|char| char.is_alphanumeric() || *char == '_');
        let is_boundary =
            || is_word(at.checked_sub(1).and_then(|before| self.text.get(before))) != is_word(self.text.get(at));
        match look {
            Look::Start => at == 0,
            Look::End => at == self.text.len(),
            Look::WordAscii | Look::WordUnicode => is_boundary(),
            Look::WordAsciiNegate | Look::WordUnicodeNegate => !is_boundary(),
            _ => true,
        }
    }
}
