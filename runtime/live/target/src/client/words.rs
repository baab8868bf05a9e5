//! Prompts as texts with an exact number of tokens.
//!
//! A text consists of words that are always one token, because pre-tokenizers of current models split at spaces.
//! The model's tokenizer decides which words qualify.

use vcr_core::seed::mix;

/// Short frequent words. Vocabularies differ, so not all are single tokens in every model.
const WORDS: &str = "time year people way day man thing woman life child world school state family student group \
    country problem hand part place case week company system program question work government number night point \
    home water room mother area money story fact month lot right study book eye job word business issue side kind \
    head house service friend father power hour game line end member law car city community name president team \
    minute idea body information back parent face others level office door health person art war history party \
    result change morning reason research girl guy moment air teacher force education foot boy age policy process \
    music market sense nation plan college interest death experience effect use class control field development \
    role effort rate heart drug show leader light voice wife police mind price report decision son view \
    relationship town road arm difference value building action season society tax director position player record \
    paper space ground form event official matter center couple site project base activity star table need court \
    oil situation cost industry figure street image phone data picture practice piece land product doctor wall \
    patient worker news test movie north love support technology step baby computer type attention film tree source \
    organization hair look window culture chance brother energy period course summer plant opportunity term letter \
    condition choice rule daughter south husband floor campaign material population call economy hospital church \
    risk fire future bank";

pub(crate) fn candidates() -> Vec<&'static str> {
    WORDS.split_whitespace().collect()
}

/// Words that are single tokens for one model.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    words: Vec<&'static str>,
    /// The number of tokens that the tokenizer adds around every text.
    special: u32,
}

/// Fewer words cannot distinguish prompts well enough.
pub(crate) const FEWEST_WORDS: usize = 64;

impl Words {
    /// Takes the candidates that are single tokens. `special` is the number of tokens of an empty text. None if
    /// there are fewer than [`FEWEST_WORDS`].
    pub(crate) fn new(single: Vec<&'static str>, special: u32) -> Option<Self> {
        (single.len() >= FEWEST_WORDS).then_some(Self { words: single, special })
    }

    /// Returns a text with as many tokens as `prompt`. Equal tokens become equal words.
    pub(crate) fn text(&self, prompt: &[u32]) -> String {
        let kept = prompt.len().saturating_sub(self.special as usize);
        let mut text = String::with_capacity(kept * 7);
        for token in &prompt[..kept] {
            text.push(' ');
            text.push_str(self.words[(mix(u64::from(*token)) % self.words.len() as u64) as usize]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_what_their_prompts_share() {
        let words = Words::new(candidates(), 1).unwrap();
        let text = words.text(&[5, 6, 7, 8]);
        assert_eq!(text.split_whitespace().count(), 3);
        assert!(words.text(&[5, 6, 9, 8]).starts_with(&text[..text.rfind(' ').unwrap()]));
        assert_eq!(words.text(&[1]), "");
        assert!(Words::new(vec!["time"], 0).is_none());
        let mut sorted = candidates();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), candidates().len());
    }
}
