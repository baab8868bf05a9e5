//! Why requests end: the numbers of vLLM's protocol and the names in captures, step
//! logs and metrics. The wire's codec and the readers of captures share this table and
//! nothing else.

/// Why a request ended. The discriminant is the number in vLLM's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FinishReason {
    /// A stop token or text.
    Stop = 0,
    /// Its token limit, or the model's.
    Length = 1,
    /// It was aborted, by its client for example.
    Abort = 2,
    /// A failure.
    Error = 3,
    /// It repeated itself.
    Repetition = 4,
}

impl FinishReason {
    /// All reasons, by number.
    pub const ALL: [Self; 5] = [Self::Stop, Self::Length, Self::Abort, Self::Error, Self::Repetition];

    /// All names, for errors: "expected ...".
    pub const EXPECTED: &str = "stop, length, abort, error or repetition";

    /// vLLM's name of the reason.
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

    /// The reason of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// The reason of that number in vLLM's protocol.
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
