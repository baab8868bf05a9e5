//! A growing list that never moves its items.

/// Bytes of a part: small enough that unused room in the last part does not matter, large enough that new parts are
/// rare.
const PART_BYTES: usize = 1 << 15;

/// A list that is stored in parts. A contiguous list is copied each time it grows, which briefly takes three times
/// its memory.
#[derive(Clone, Debug)]
pub(super) struct Parts<T> {
    /// Full or partly filled parts before the last part.
    done: Vec<Vec<T>>,
    last: Vec<T>,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { done: Vec::new(), last: Vec::new() }
    }
}

impl<T: Copy> Parts<T> {
    const PART_LEN: usize = PART_BYTES / size_of::<T>();

    #[inline]
    pub(super) fn push(&mut self, item: T) {
        if self.last.len() == Self::PART_LEN {
            self.begin_part();
        }
        self.last.push(item);
    }

    #[cold]
    fn begin_part(&mut self) {
        self.done.push(std::mem::replace(&mut self.last, Vec::with_capacity(Self::PART_LEN)));
    }

    pub(super) fn extend(&mut self, mut items: impl ExactSizeIterator<Item = T>) {
        while items.len() > 0 {
            if self.last.len() == Self::PART_LEN {
                self.begin_part();
            }
            let room = Self::PART_LEN - self.last.len();
            self.last.extend(items.by_ref().take(room));
        }
    }

    /// The latest item if it is in the last part. The last part may be empty although the list is not.
    #[inline]
    pub(super) fn last(&self) -> Option<T> {
        self.last.last().copied()
    }

    /// The same item as [`Parts::last`], mutable.
    #[inline]
    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.last.last_mut()
    }

    /// Removes and returns the last item if it is in the last part.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.last.pop()
    }

    pub(super) fn len(&self) -> usize {
        self.done.iter().map(Vec::len).sum::<usize>() + self.last.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts().flatten()
    }

    fn parts(&self) -> impl Iterator<Item = &[T]> {
        self.done.iter().chain(std::iter::once(&self.last)).map(Vec::as_slice)
    }

    #[inline]
    pub(super) fn for_each(&self, mut see: impl FnMut(T)) {
        self.parts().for_each(|part| part.iter().for_each(|&item| see(item)));
    }

    pub(super) fn absorb(&mut self, other: Self) {
        self.done.extend(other.done);
        if other.last.len() <= Self::PART_LEN - self.last.len() {
            self.last.extend(other.last);
        } else {
            self.done.push(std::mem::replace(&mut self.last, other.last));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Parts;

    const PART_LEN: u64 = Parts::<u64>::PART_LEN as u64;

    #[derive(Clone, Debug)]
    enum Change {
        Push,
        Pop,
        Extend(u64),
        Absorb(u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        let len = || prop_oneof![0..5u64, PART_LEN - 2..PART_LEN + 3, 0..3 * PART_LEN];
        prop_oneof![
            Just(Change::Push),
            Just(Change::Pop),
            len().prop_map(Change::Extend),
            len().prop_map(Change::Absorb)
        ]
    }

    proptest! {
        /// The parts hold the same items as a list after any changes.
        #[test]
        fn items_are_those_of_a_list(changes in prop::collection::vec(change(), 0..30)) {
            let (mut parts, mut list) = (Parts::default(), Vec::new());
            let mut next = 0;
            for change in changes {
                let mut more = |len: u64| {
                    next += len;
                    next - len..next
                };
                match change {
                    Change::Push => more(1).for_each(|item| { parts.push(item); list.push(item); }),
                    Change::Pop => {
                        let last = parts.last();
                        prop_assert_eq!(parts.last_mut().copied(), last);
                        prop_assert_eq!(parts.pop(), last);
                        list.retain(|&item| Some(item) != last);
                    }
                    Change::Extend(len) => {
                        let items: Vec<u64> = more(len).collect();
                        parts.extend(items.iter().copied());
                        list.extend(items);
                    }
                    Change::Absorb(len) => {
                        let mut other = Parts::default();
                        more(len).for_each(|item| { other.push(item); list.push(item); });
                        parts.absorb(other);
                    }
                }
                prop_assert_eq!(parts.len(), list.len());
            }
            prop_assert_eq!(parts.is_empty(), list.is_empty());
            let mut items: Vec<u64> = parts.iter().copied().collect();
            let mut seen = Vec::new();
            parts.for_each(|item| seen.push(item));
            prop_assert_eq!(&seen, &items);
            items.sort_unstable();
            prop_assert_eq!(items, list);
        }
    }
}
