//! Methods of drafters, and their layers.

use vcr_core::Drafter;

use crate::layers::Layer;

/// Origin of drafts, by vLLM's `method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// Modules of the model itself for multi-token prediction.
    Mtp,
    /// A head of EAGLE.
    Eagle,
    /// A head of EAGLE-3, which reads several layers of the model.
    Eagle3,
    /// A separate, smaller model.
    DraftModel,
}

impl DraftMethod {
    const NAMES: [(&'static str, Self); 4] =
        [("mtp", Self::Mtp), ("eagle", Self::Eagle), ("eagle3", Self::Eagle3), ("draft_model", Self::DraftModel)];

    /// The method of this name, if it has layers.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
    }

    /// The names, in a sentence.
    #[must_use]
    pub fn expected() -> String {
        Self::NAMES.map(|(name, _)| name).join(", ")
    }
}

/// The properties of a drafter that determine its KV cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftShape<'a> {
    pub(crate) method: DraftMethod,
    /// Its layers, in vLLM's order, behind the layers of the model.
    pub(crate) layers: &'a [Layer],
}

impl DraftShape<'_> {
    /// The drafter as the engine core knows it.
    pub(crate) fn kind(&self, drafts: u64) -> Drafter {
        match self.method {
            DraftMethod::Mtp if (self.layers.len() as u64).min(drafts) > 1 => Drafter::MultiModuleMtp,
            DraftMethod::Mtp => Drafter::Mtp,
            DraftMethod::Eagle | DraftMethod::Eagle3 => Drafter::Eagle,
            DraftMethod::DraftModel => Drafter::DraftModel,
        }
    }
}
