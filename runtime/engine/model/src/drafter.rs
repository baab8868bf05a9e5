//! Methods of drafters.

use vcr_core::Drafter;

use crate::layers::Layer;

/// A drafter's method (vLLM's `method`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// Multi-token-prediction modules of the model itself.
    Mtp,
    /// An EAGLE head.
    Eagle,
    /// An EAGLE-3 head, which reads several layers of the model.
    Eagle3,
    /// A separate, smaller model.
    DraftModel,
}

impl DraftMethod {
    const NAMES: [(&'static str, Self); 4] =
        [("mtp", Self::Mtp), ("eagle", Self::Eagle), ("eagle3", Self::Eagle3), ("draft_model", Self::DraftModel)];

    /// The method with this name. None for a method without layers.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
    }

    /// The list of names, for messages.
    #[must_use]
    pub fn expected() -> String {
        Self::NAMES.map(|(name, _)| name).join(", ")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftShape<'a> {
    pub(crate) method: DraftMethod,
    /// The drafter's layers, in vLLM's order.
    pub(crate) layers: &'a [Layer],
}

impl DraftShape<'_> {
    pub(crate) fn kind(&self, drafts: u64) -> Drafter {
        match self.method {
            DraftMethod::Mtp if (self.layers.len() as u64).min(drafts) > 1 => Drafter::MultiModuleMtp,
            DraftMethod::Mtp => Drafter::Mtp,
            DraftMethod::Eagle | DraftMethod::Eagle3 => Drafter::Eagle,
            DraftMethod::DraftModel => Drafter::DraftModel,
        }
    }
}
