//! Where the lines of vLLM differ.

/// A line of vLLM, as far as its block hashes differ from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VllmLine {
    /// 0.27 and 0.28: the hash before the first block is random, extra keys
    /// are bare.
    V0_27,
    /// 0.29 and 0.30: cryptographic algorithms start from a fixed seed.
    V0_29,
    /// From 0.31: extra keys are tagged with what they are.
    V0_31,
}

impl VllmLine {
    /// The line of a release; none for those before 0.27, whose rules are not
    /// known here. Releases after 0.33 are taken to keep its rules.
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
    fn releases_fall_into_lines() {
        let line = |minor| VllmLine::of_release(0, minor);
        assert_eq!(line(26), None);
        assert_eq!([line(27), line(28)], [Some(VllmLine::V0_27); 2]);
        assert_eq!([line(29), line(30)], [Some(VllmLine::V0_29); 2]);
        assert_eq!([line(31), line(33), VllmLine::of_release(1, 0)], [Some(VllmLine::V0_31); 3]);
    }
}
