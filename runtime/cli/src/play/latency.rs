//! Latency models by what users call them.

use std::path::Path;

use vcr_live::LatencyFactory;
use vcr_scenario::expression;

use super::guests::LiveGuests;
use super::unusable::Unusable;
use crate::values::is_guest;

/// The model that a user, at the place `place`, calls `text`, and what to call
/// it. A guest may have a fallback.
pub(crate) fn named_latency(
    guests: &LiveGuests,
    place: &str,
    text: &str,
    guest_config: Option<&str>,
    fallback: Option<LatencyFactory>,
) -> Result<(LatencyFactory, String), Unusable> {
    if is_guest(text) {
        return guests.latency(text, guest_config.unwrap_or("{}"), fallback);
    }
    if fallback.is_some() {
        return Err(Unusable::fallback_of_native(place, "--latency-fallback", "model"));
    }
    if guest_config.is_some() {
        return Err(Unusable::config_of_native(place, "model"));
    }
    let factory = expression::latency(place, text, Path::new(""), Some(guests.wall_time()))?;
    Ok((factory, text.to_owned()))
}
