//! Media of a tokenized prompt, in the format of rendered requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vcr_wire::{MmFeature, PlaceholderRange};

use crate::server::error::ApiError;

/// Hashes and positions of media, by modality.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(in crate::api) struct Features {
    mm_hashes: BTreeMap<String, Vec<String>>,
    mm_placeholders: BTreeMap<String, Vec<Place>>,
    /// Tensors, which are ignored.
    #[serde(default)]
    kwargs_data: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Place {
    offset: u64,
    length: u64,
}

impl Features {
    pub(in crate::api) fn of(features: &[MmFeature]) -> Self {
        let mut all = Self::default();
        for feature in features {
            let place = Place { offset: feature.mm_position.offset, length: feature.mm_position.length };
            all.mm_hashes.entry(feature.modality.clone()).or_default().push(feature.identifier.clone());
            all.mm_placeholders.entry(feature.modality.clone()).or_default().push(place);
        }
        all
    }

    /// Converts the features for engines. `prompt_tokens` is the length of the prompt.
    ///
    /// # Errors
    /// When hashes and positions do not match, or a position is outside the prompt.
    pub(in crate::api) fn placed(self, prompt_tokens: usize) -> Result<Vec<MmFeature>, ApiError> {
        let refused = |what: &str| Err(ApiError::invalid_param("features", what));
        if !self.mm_hashes.keys().eq(self.mm_placeholders.keys()) {
            return refused("mm_hashes and mm_placeholders must use the same modalities");
        }
        let mut features = Vec::new();
        for ((modality, hashes), places) in self.mm_hashes.into_iter().zip(self.mm_placeholders.into_values()) {
            if hashes.len() != places.len() {
                return refused(&format!("{modality} mm_hashes and mm_placeholders must have the same length"));
            }
            for (hash, Place { offset, length }) in hashes.into_iter().zip(places) {
                if length == 0 || offset.checked_add(length).is_none_or(|end| end > prompt_tokens as u64) {
                    return refused("mm_placeholders must lie within token_ids");
                }
                features.push(MmFeature {
                    data: None,
                    modality: modality.clone(),
                    identifier: hash.clone(),
                    mm_position: PlaceholderRange { offset, length, is_embed: None },
                    mm_hash: Some(hash),
                });
            }
        }
        features.sort_by_key(|feature| feature.mm_position.offset);
        let ends = features.iter().map(|feature| feature.mm_position.offset + feature.mm_position.length);
        if ends.zip(features.iter().skip(1)).any(|(end, next)| next.mm_position.offset < end) {
            return refused("mm_placeholders must be globally non-overlapping and sorted");
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn features_go_there_and_back_and_bad_ones_are_refused() {
        let read = |places: Value| {
            let value = json!({"mm_hashes": {"image": ["a", "b"]}, "mm_placeholders": {"image": places}});
            serde_json::from_value::<Features>(value).expect("features").placed(10)
        };
        let place = |offset: u64, length: u64| json!({"offset": offset, "length": length});
        let features = read(json!([place(2, 3), place(5, 5)])).expect("they fit");
        let back = serde_json::to_value(Features::of(&features)).expect("JSON");
        assert_eq!(back["mm_placeholders"]["image"], json!([place(2, 3), place(5, 5)]));
        assert_eq!(back["mm_hashes"]["image"], json!(["a", "b"]));
        for places in [json!([place(2, 3)]), json!([place(2, 3), place(4, 2)]), json!([place(2, 3), place(8, 3)])] {
            assert!(read(places.clone()).is_err(), "{places}");
        }
    }
}
