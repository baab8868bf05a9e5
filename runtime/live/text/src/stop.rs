//! Stop strings in streamed text, by the rules of vLLM's `v1/engine/detokenizer.py`.

/// A stop string that ended a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// The index in the list of stop strings.
    pub index: usize,
    pub stop: String,
}

/// Finds stop strings across the pieces of a text.
///
/// As in vLLM, the length of the longest stop string less one character is always held back, even if no match can
/// start there. Nothing is held back if stop strings stay in the output. If a piece contains several stop strings,
/// the first in the list wins, even if another one occurs earlier in the text.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    is_included: bool,
    /// The number of characters held back.
    held_chars: usize,
    /// The number of bytes of earlier pieces that may contain the start of a match.
    reach: usize,
    /// The end of the text: the part held back, after enough context for a match.
    tail: String,
    /// The number of bytes of `tail` that are already released.
    released: usize,
}

/// `tail` is cut only when it is this much too long, so that the cost stays linear.
const RUN_BYTES: usize = 1024;

impl StopStrings {
    /// Creates a search for a request's stop strings. Empty strings are ignored.
    #[must_use]
    pub fn new(stops: Vec<String>, include_stop_str_in_output: bool) -> Self {
        let longest_chars = stops.iter().map(|stop| stop.chars().count()).max().unwrap_or(0);
        let longest_bytes = stops.iter().map(String::len).max().unwrap_or(0);
        Self {
            held_chars: if include_stop_str_in_output { 0 } else { longest_chars.saturating_sub(1) },
            reach: longest_bytes.saturating_sub(1),
            is_included: include_stop_str_in_output,
            stops,
            tail: String::new(),
            released: 0,
        }
    }

    /// Takes the next piece and appends the text that may be sent to `out`. After a match, `push` must not be
    /// called again.
    ///
    /// While `may_stop` is false, pieces are not searched: the request has not exceeded `min_tokens`.
    pub fn push(&mut self, piece: &str, may_stop: bool, out: &mut String) -> Option<StopMatch> {
        if self.stops.is_empty() {
            out.push_str(piece);
            return None;
        }
        let before = self.tail.len();
        self.tail.push_str(piece);
        if may_stop
            && !piece.is_empty()
            && let Some((index, end)) = self.find(before)
        {
            out.push_str(&self.tail[self.released..end.max(self.released)]);
            self.released = self.tail.len();
            return Some(StopMatch { index, stop: self.stops[index].clone() });
        }
        self.release(self.held_chars, out);
        None
    }

    /// Appends the text held back, after the output has ended for another reason.
    pub fn finish(&mut self, out: &mut String) {
        self.release(0, out);
    }

    /// Returns the index of the stop string and the position where the text ends.
    fn find(&self, before: usize) -> Option<(usize, usize)> {
        self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()).find_map(|(index, stop)| {
            let mut from = before.saturating_sub(stop.len() - 1);
            while !self.tail.is_char_boundary(from) {
                from += 1;
            }
            let at = from + self.tail[from..].find(stop.as_str())?;
            Some((index, if self.is_included { at + stop.len() } else { at }))
        })
    }

    fn release(&mut self, held_chars: usize, out: &mut String) {
        let end = match held_chars {
            0 => self.tail.len(),
            held => self.tail.char_indices().rev().nth(held - 1).map_or(0, |(at, _)| at),
        };
        if end > self.released {
            out.push_str(&self.tail[self.released..end]);
            self.released = end;
        }
        let mut unneeded = self.released.min(self.tail.len().saturating_sub(self.reach));
        if unneeded > RUN_BYTES {
            while !self.tail.is_char_boundary(unneeded) {
                unneeded -= 1;
            }
            self.tail.drain(..unneeded);
            self.released -= unneeded;
        }
    }
}
