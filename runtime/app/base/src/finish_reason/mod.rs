//! Finish reasons: their numbers in vLLM's protocol, and their names in captures, step logs and metrics. The wire
//! codec and the capture readers share only this table.

/// The reason why a request ended. The discriminant is the number in vLLM's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop = 0,
    /// The token limit of the request or the model.
    Length = 1,
    /// The request was aborted, for example by its client.
    Abort = 2,
    /// An internal error.
    Error = 3,
    /// The output repeated itself.
    Repetition = 4,
}

impl FinishReason {
    /// All reasons, by number.
    pub const ALL: [Self; 5] = [Self::Stop, Self::Length, Self::Abort, Self::Error, Self::Repetition];

    /// All names, for error texts.
    pub const EXPECTED: &str = "stop, length, abort, error or repetition";

    /// Name of the reason in vLLM.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
            Self::Repetition => "repetition",
        }
    }

    /// The reason with that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// The reason with that number in vLLM's protocol.
    #[must_use]
    pub fn of_number(number: usize) -> Option<Self> {
        Self::ALL.get(number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_their_reasons() {
        for reason in FinishReason::ALL {
            assert_eq!(FinishReason::of_number(reason as usize), Some(reason));
            assert_eq!(FinishReason::parse(reason.name()), Some(reason));
        }
        assert_eq!((FinishReason::of_number(5), FinishReason::parse("Stop")), (None, None));
    }

    #[test]
    fn errors_name_every_reason() {
        let names: Vec<&str> = FinishReason::EXPECTED.split(", ").flat_map(|name| name.split(" or ")).collect();
        assert_eq!(names, FinishReason::ALL.map(FinishReason::name));
    }
}
