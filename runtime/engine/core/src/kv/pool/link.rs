//! Block numbers in the width that a pool needs.

/// The number of a block as it is kept.
pub(super) trait Link: Copy + Eq + std::fmt::Debug {
    /// The null block.
    const NULL: Self;
    fn of(number: u32) -> Self;
    fn number(self) -> u32;
}

impl Link for u16 {
    const NULL: Self = 0;

    #[inline]
    fn of(number: u32) -> Self {
        debug_assert!(number <= Self::MAX.into());
        number as Self
    }

    #[inline]
    fn number(self) -> u32 {
        self.into()
    }
}

impl Link for u32 {
    const NULL: Self = 0;

    #[inline]
    fn of(number: u32) -> Self {
        number
    }

    #[inline]
    fn number(self) -> u32 {
        self
    }
}
