use vcr_guest_sdk::Rng;

use crate::values::draw::below;

/// Words with lower-case letters only, so that JSON needs no escapes.
pub(crate) const WORDS: &[&str] = &[
    "amber", "anchor", "apple", "arrow", "basin", "beacon", "birch", "bridge", "candle", "canyon", "cedar", "circle",
    "cloud", "copper", "coral", "cotton", "delta", "desert", "drift", "ember", "fable", "falcon", "fern", "field",
    "flame", "forest", "garden", "glass", "grain", "harbor", "hazel", "hollow", "island", "ivory", "jade", "jungle",
    "kettle", "lantern", "ledger", "linen", "maple", "marble", "meadow", "mirror", "nectar", "needle", "ocean",
    "olive", "orbit", "paper", "pebble", "pine", "planet", "prairie", "quartz", "quiet", "raven", "ribbon", "river",
    "saddle", "silver", "stone", "summer", "timber",
];

pub(crate) fn word(rng: &mut Rng) -> &'static str {
    WORDS[below(rng, WORDS.len() as u32) as usize]
}

pub(crate) struct Words {
    rng: Rng,
    /// Number of words that are still required. More may follow.
    left: u32,
}

impl Words {
    /// Words for a text of `fewest` to `most` words.
    pub(crate) fn new(mut rng: Rng, [fewest, most]: [u32; 2]) -> Self {
        let left = fewest + below(&mut rng, (most - fewest).saturating_add(1));
        Self { rng, left }
    }

    pub(crate) fn are_over(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn next_word(&mut self) -> &'static str {
        self.left = self.left.saturating_sub(1);
        word(&mut self.rng)
    }
}
