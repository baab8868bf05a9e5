//! The choice of values that a schema leaves open.

use vcr_guest_sdk::Rng;

/// Ranges and probabilities for the arguments of tools. The schema's own limits take precedence. Settings
/// that are not given are chosen as in other documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArgumentSettings {
    /// The least and the greatest integer.
    pub integers: Option<(f64, f64)>,
    /// The least and the greatest number.
    pub numbers: Option<(f64, f64)>,
    /// The fewest and the most items of an array.
    pub array_items: Option<(u32, u32)>,
    /// Probability of an argument that is not required.
    pub optional_arguments: Option<f64>,
    /// Probability of a field, within an argument, that is not required.
    pub optional_fields: Option<f64>,
    /// Probability of another call after each one.
    pub further_calls: Option<f64>,
}

/// The amount of optional text.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    pub(crate) generosity: u32,
    pub(crate) settings: &'a ArgumentSettings,
}

/// Settings of documents that are not arguments.
pub(crate) static USUAL: ArgumentSettings = ArgumentSettings {
    integers: None,
    numbers: None,
    array_items: None,
    optional_arguments: None,
    optional_fields: None,
    further_calls: None,
};

/// Whether something of this probability happens.
pub(crate) fn happens(probability: f64, rng: &mut Rng) -> bool {
    f64::from(rng.next_u32()) < probability * 4_294_967_296.0
}
