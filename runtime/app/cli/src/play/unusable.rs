//! Options that cannot be used.

/// The reason why options cannot be used, and a hint.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Unusable {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// The error of a fallback for something other than a guest.
    pub(crate) fn fallback_of_native(place: &str, option: &str, what: &str) -> Self {
        Self {
            message: format!("{place}: only guests take a fallback"),
            hint: Some(format!("leave {option} out: a native {what} does not fail")),
        }
    }

    /// The error of a guest config for something other than a guest.
    pub(crate) fn config_of_native(place: &str, what: &str) -> Self {
        Self {
            message: format!("{place}: only guests take a configuration"),
            hint: Some(format!("name the path of a .wasm guest, or put the settings into the {what}'s own map")),
        }
    }
}

impl From<vcr_scenario::ScenarioError> for Unusable {
    fn from(error: vcr_scenario::ScenarioError) -> Self {
        Self { message: error.to_string(), hint: error.hint }
    }
}

impl From<vcr_guest_tools::registry::RegistryError> for Unusable {
    fn from(error: vcr_guest_tools::registry::RegistryError) -> Self {
        Self { message: error.to_string(), hint: error.hint() }
    }
}

impl From<vcr_guest::GuestError> for Unusable {
    fn from(error: vcr_guest::GuestError) -> Self {
        let mut hint = error.hint();
        if let vcr_guest::GuestError::Call { fault: vcr_guest::CallFault::Rejected { .. }, .. } = error {
            let option = "give its configuration by the option `--...-config` with the guest, as JSON or as @FILE";
            hint = Some(hint.map_or(option.to_owned(), |example| format!("{option}; {example}")));
        }
        Self { message: error.to_string(), hint }
    }
}
