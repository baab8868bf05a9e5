/// Ranges of vLLM versions with the same block hashes. A variant has the name of the first version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashRules {
    /// 0.27 and 0.28: the `NONE_HASH` is random, and extra keys are bare.
    V0_27,
    /// 0.29 and 0.30: cryptographic algorithms use a fixed seed.
    V0_29,
    /// From 0.31 on: extra keys are tagged with their kind.
    V0_31,
}

impl HashRules {
    /// The rules of a release; none before 0.27. Releases after 0.33 are assumed to keep its rules.
    #[must_use]
    pub fn of_release(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (0, ..27) => None,
            (0, 27..29) => Some(Self::V0_27),
            (0, 29..31) => Some(Self::V0_29),
            _ => Some(Self::V0_31),
        }
    }

    pub(crate) fn has_fixed_seed(self) -> bool {
        self >= Self::V0_29
    }

    pub(crate) fn tags_extra_keys(self) -> bool {
        self >= Self::V0_31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_follow_releases() {
        let rules = |minor| HashRules::of_release(0, minor);
        assert_eq!(rules(26), None);
        assert_eq!([rules(27), rules(28)], [Some(HashRules::V0_27); 2]);
        assert_eq!([rules(29), rules(30)], [Some(HashRules::V0_29); 2]);
        assert_eq!([rules(31), rules(33), HashRules::of_release(1, 0)], [Some(HashRules::V0_31); 3]);
    }
}
