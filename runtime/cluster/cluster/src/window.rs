//! A list of numbered items whose first items are dropped over time.

use std::ops::{Index, IndexMut};

/// Minimum number of items that are dropped together, because the remaining items are then moved.
const MIN_FORGOTTEN: usize = 512;

/// Items with the numbers from `begin` (inclusive) to `end` (exclusive).
#[derive(Clone, Debug)]
pub(crate) struct Window<T> {
    first: usize,
    items: Vec<T>,
    /// Number of items at the front of the list that are forgotten but not removed yet.
    forgotten: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { first: 0, items: Vec::new(), forgotten: 0 }
    }
}

impl<T> Window<T> {
    /// The number of the first item that is not forgotten.
    pub(crate) fn begin(&self) -> u64 {
        (self.first + self.forgotten) as u64
    }

    /// The number of the next item to be added.
    pub(crate) fn end(&self) -> u64 {
        (self.first + self.items.len()) as u64
    }

    pub(crate) fn reserve_exact(&mut self, items: usize) {
        self.items.reserve_exact(items);
    }

    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    pub(crate) fn advance(&mut self, begin: u64) {
        let begin = (begin as usize).clamp(self.first + self.forgotten, self.first + self.items.len());
        self.forgotten = begin - self.first;
        if self.forgotten >= MIN_FORGOTTEN.max(self.items.len() / 2) {
            self.items.drain(..self.forgotten);
            self.first += self.forgotten;
            self.forgotten = 0;
        }
    }

    /// An item, unless it is forgotten or not added yet.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let place = usize::try_from(number).ok()?.checked_sub(self.first)?;
        if place < self.forgotten { None } else { self.items.get(place) }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = usize::try_from(number).ok()?.checked_sub(self.first)?;
        if place < self.forgotten { None } else { self.items.get_mut(place) }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &self.items[self.forgotten..]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[self.forgotten..]
    }

    pub(crate) fn into_vec(mut self) -> Vec<T> {
        self.items.drain(..self.forgotten);
        self.items
    }
}

/// # Panics
/// If the item is forgotten or not added yet.
impl<T> Index<usize> for Window<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: usize) -> &T {
        &self.items[number - self.first]
    }
}

impl<T> IndexMut<usize> for Window<T> {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.items[number - self.first]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn items_are_found_until_they_are_forgotten(steps in prop::collection::vec((0u64..700, 0u64..900), 1..20)) {
            let mut window = Window::default();
            let (mut begin, mut end) = (0, 0);
            for (added, forgotten) in steps {
                for _ in 0..added {
                    window.push(end * 3);
                    end += 1;
                }
                begin = (begin + forgotten).min(end);
                window.advance(begin);
                prop_assert_eq!((window.begin(), window.end()), (begin, end));
                let kept: Vec<u64> = (begin..end).map(|number| number * 3).collect();
                prop_assert_eq!(window.as_slice(), &kept[..]);
                prop_assert!(window.items.len() as u64 <= (end - begin).max(MIN_FORGOTTEN as u64) * 2 + added);
                for number in [0, begin.saturating_sub(1), begin, (begin + end) / 2, end] {
                    let expected = (begin..end).contains(&number).then_some(number * 3);
                    prop_assert_eq!(window.get(number).copied(), expected);
                    if let Some(item) = expected {
                        prop_assert_eq!(window[number as usize], item);
                    }
                }
            }
        }
    }
}
