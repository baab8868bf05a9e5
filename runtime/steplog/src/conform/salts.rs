//! Salts of prompts: adapters and `cache_salt` separate blocks of the same tokens.

/// The texts of a recording's salts, in the order of their first request.
#[derive(Debug, Default)]
pub(super) struct Salts {
    texts: Vec<String>,
}

impl Salts {
    /// The salt of a request with this adapter and this `cache_salt`. An empty text is none, as in vLLM.
    pub(super) fn of(&mut self, lora: Option<u32>, text: Option<&str>) -> u64 {
        let adapter = lora.map_or(0, |lora| u64::from(lora) + 1);
        let Some(text) = text.filter(|text| !text.is_empty()) else { return adapter };
        let known = self.texts.iter().position(|known| known == text);
        let number = known.unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        (number as u64 + 1) << 33 | adapter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_and_texts_are_told_apart() {
        let mut salts = Salts::default();
        let of = [
            (None, None),
            (Some(0), None),
            (Some(u32::MAX), None),
            (None, Some("a")),
            (None, Some("b")),
            (Some(0), Some("a")),
        ];
        let salts_of: Vec<u64> = of.iter().map(|&(lora, text)| salts.of(lora, text)).collect();
        for (index, salt) in salts_of.iter().enumerate() {
            assert!(!salts_of[..index].contains(salt), "{salts_of:?}");
        }
        assert_eq!(salts.of(None, Some("a")), salts_of[3]);
        assert_eq!(salts.of(None, Some("")), salts_of[0]);
    }
}
