//! A model with a drafter.

use vcr_core::Drafter;

use crate::draft::{Draft, OwnSizes};
use crate::drafter::DraftMethod;
use crate::error::ModelError;
use crate::layers::{Attention, Layer, Mixer, Reach};
use crate::model::Model;
use crate::serving::serving;

impl Model {
    /// Adds a drafter: the EAGLE head or draft model `own`, or the model's own modules.
    pub fn with_drafter(self, method: DraftMethod, own: Option<Self>) -> Result<Self, ModelError> {
        let field = "drafter";
        let layers = match (method, &own) {
            (DraftMethod::Mtp, None) => self.module_layers(),
            (DraftMethod::Mtp, Some(_)) => {
                return Err(serving(
                    field,
                    "mtp: expected no draft model: its modules are part of the model".to_owned(),
                ));
            }
            (_, Some(own)) => own.layers.clone(),
            (_, None) => {
                return Err(serving(field, "expected the model of the drafter in addition to its method".to_owned()));
            }
        };
        if layers.is_empty() {
            return Err(serving(field, format!("mtp: expected a model with attention, got {}", self.name)));
        }
        let own = own.map(|own| OwnSizes { sizes: own.sizes, formats: own.formats, head: own.head_sizes });
        Ok(Self { draft: Some(Draft { method, layers, own }), ..self })
    }

    /// The drafter's kind in the engine core, for this number of drafts. None without a drafter.
    #[must_use]
    pub fn drafter(&self, drafts: u64) -> Option<Drafter> {
        self.draft.as_ref().map(|draft| draft.shape().kind(drafts))
    }

    /// One layer per multi-token-prediction module. Each is like the model's last layer with full attention.
    fn module_layers(&self) -> Vec<Layer> {
        let modules = self.mtp_modules.unwrap_or(1).min(64) as usize;
        if let Some(layer) = self.window_module() {
            return vec![layer; modules];
        }
        let attends = |layer: &&Layer| match layer.mixer {
            Mixer::Attention(attention) => attention.reach == Reach::Full,
            Mixer::Latent(_) => true,
            Mixer::State(_) | Mixer::None => false,
        };
        self.layers.iter().rfind(attends).map(|layer| vec![*layer; modules]).unwrap_or_default()
    }

    /// The layer of a module with a window and the feed-forward network of the model's first layer (`mimo_v2_mtp.py`).
    fn window_module(&self) -> Option<Layer> {
        if !self.architecture.starts_with("MiMoV2") {
            return None;
        }
        let has_window =
            |layer: &&Layer| matches!(layer.mixer, Mixer::Attention(Attention { reach: Reach::Window(_), .. }));
        let Layer { mixer, .. } = *self.layers.iter().rfind(has_window)?;
        Some(Layer { mixer, feed_forward: self.layers.first()?.feed_forward })
    }
}
