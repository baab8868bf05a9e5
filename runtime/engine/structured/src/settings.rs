//! Settings for what a schema leaves open.

use vcr_guest_sdk::Rng;

/// Ranges and probabilities for the arguments of tools. The schema's own limits take precedence. Settings
/// that are None have the same defaults as in other documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArgumentSettings {
    /// Minimum and maximum integer.
    pub integers: Option<(f64, f64)>,
    /// Minimum and maximum of numbers that need not be integers.
    pub numbers: Option<(f64, f64)>,
    /// Minimum and maximum number of items in an array.
    pub array_items: Option<(u32, u32)>,
    /// Probability of an optional argument.
    pub optional_arguments: Option<f64>,
    /// Probability of an optional field within an argument.
    pub optional_fields: Option<f64>,
    /// Probability that another call follows a call.
    pub further_calls: Option<f64>,
}

/// The amount of optional text to generate.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    pub(crate) generosity: u32,
    pub(crate) settings: &'a ArgumentSettings,
}

/// Settings for documents that are not tool arguments.
pub(crate) static USUAL: ArgumentSettings = ArgumentSettings {
    integers: None,
    numbers: None,
    array_items: None,
    optional_arguments: None,
    optional_fields: None,
    further_calls: None,
};

pub(crate) fn happens(probability: f64, rng: &mut Rng) -> bool {
    f64::from(rng.next_u32()) < probability * 4_294_967_296.0
}
