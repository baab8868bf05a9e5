//! The items of a request that are in the encoder cache, in vLLM's order.
//!
//! vLLM keeps these ids in a Python set and frees them in the set's iteration order, so that order decides
//! which item is evicted first. For small numbers it is the order of the slots in CPython's hash table
//! (3.11, `Objects/setobject.c`): a number is its own hash, a probe looks at up to ten consecutive
//! slots before it jumps, and the slot of a removed entry is reused.

/// A set of item indices with CPython's iteration order.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputIds {
    /// The number of slots is a power of two, or zero before the first insertion.
    slots: Vec<Slot>,
    filled: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    #[default]
    Empty,
    Removed,
    Id(u32),
}

const LEAST_SLOTS: usize = 8;
const SLOTS_IN_A_ROW: usize = 10;
const PERTURB_SHIFT: u32 = 5;

impl InputIds {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn insert(&mut self, id: u32) -> bool {
        if self.slots.is_empty() {
            self.slots = vec![Slot::Empty; LEAST_SLOTS];
        }
        let (place, removed) = self.find(id);
        if self.slots[place] == Slot::Id(id) {
            return false;
        }
        self.len += 1;
        if let Some(removed) = removed {
            self.slots[removed] = Slot::Id(id);
            return true;
        }
        self.slots[place] = Slot::Id(id);
        self.filled += 1;
        if self.filled * 5 >= (self.slots.len() - 1) * 3 {
            self.grow();
        }
        true
    }

    /// Removes an id. Returns false if it was absent. A set that becomes empty is replaced by a new one, as in vLLM.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let (place, _) = self.find(id);
        let was_there = self.slots[place] == Slot::Id(id);
        if was_there {
            self.slots[place] = Slot::Removed;
            self.len -= 1;
            if self.len == 0 {
                *self = Self::default();
            }
        }
        was_there
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter_map(|slot| if let Slot::Id(id) = slot { Some(*id) } else { None })
    }

    /// Returns the slot of an id, or the empty slot where the search ends. Also returns the first reusable slot of a
    /// removed id on the way.
    fn find(&self, id: u32) -> (usize, Option<usize>) {
        let mut removed = None;
        let place = probe(id, self.slots.len(), |place| {
            if self.slots[place] == Slot::Removed {
                removed = Some(place);
            }
            self.slots[place] == Slot::Empty || self.slots[place] == Slot::Id(id)
        });
        (place, removed)
    }

    fn grow(&mut self) {
        let mut size = LEAST_SLOTS;
        while size <= self.len * 4 {
            size *= 2;
        }
        let mut slots = vec![Slot::Empty; size];
        for id in self.iter() {
            let place = probe(id, size, |place| slots[place] == Slot::Empty);
            slots[place] = Slot::Id(id);
        }
        self.slots = slots;
        self.filled = self.len;
    }
}

/// The first slot in probe order that `ends` accepts.
fn probe(id: u32, num_slots: usize, mut ends: impl FnMut(usize) -> bool) -> usize {
    let mask = num_slots - 1;
    let mut perturb = id as usize;
    let mut first = perturb & mask;
    loop {
        let row = if first + SLOTS_IN_A_ROW <= num_slots { SLOTS_IN_A_ROW } else { 1 };
        if let Some(place) = (first..first + row).find(|&place| ends(place)) {
            return place;
        }
        perturb >>= PERTURB_SHIFT;
        first = (first * 5 + 1 + perturb) & mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A negative number is the bitwise complement of a removed id. The expected lists were printed by CPython 3.11.
    #[test]
    fn ids_come_in_the_order_of_a_python_set() {
        let cases: &[(&[i64], &[u32])] = &[
            (&[7, 8], &[8, 7]),
            (&[9, 2], &[9, 2]),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -2, -3, -4, -5, -6, -7, -8, -9], &[9, 10, 11]),
            (&[8, 4, -5, 4, -9, 3, 6, 8], &[8, 3, 4, 6]),
            (&[20, 4, 12, 28], &[12, 28, 20, 4]),
            (
                &[4, 8, 7, 3, 2, 6, -4, 3, -7, 1, -8, 0, -5, -4, 6, 5, -3, -6, 5, 7, 2, -3, -7, -1, 2, 3, -8, 4, 0, -2],
                &[0, 3, 5, 2, 8, 4],
            ),
            (
                &[
                    16, 4, 17, 10, 2, 5, 1, 19, 8, 13, -14, 13, 9, -17, 15, -11, -10, -5, -6, 11, 10, -9, 8, 16, -12,
                    11, -14, -16, 13, 18, -14, 0, -19, 5, 7, 4, -6, -18, 14, -20, 6, -12, 17, 9, 18, 13, 11, 5, -19,
                    19,
                ],
                &[0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 17, 19],
            ),
            (
                &[
                    0, 20, 39, 57, 27, 14, 24, 38, 31, 1, 19, 18, -2, 15, 50, 25, 34, -51, -32, 9, -19, 33, -58, 48,
                    18, 21, 46, 29, 43, 37, -1, -35, 44, 40, -25, 4, 0, 41, 58, 10, 51, -47, 52, 1, 3, 7, -10, 11, -11,
                    13, 6, 47, 56, -1, 31, -42, -4, -19, 35, -15,
                ],
                &[
                    1, 4, 6, 7, 11, 13, 15, 19, 20, 21, 25, 27, 29, 31, 33, 35, 37, 38, 39, 40, 43, 44, 47, 48, 51, 52,
                    56, 58,
                ],
            ),
            (
                &[
                    141, 192, 95, 99, 182, 87, 170, 31, 116, 118, 82, 135, 185, 109, 57, -171, 54, 159, 60, 157, 98,
                    165, 161, 92, 55, 101, 9, 51, 123, 89, 120, -83, 25, 167, -121, 65, 41, 172, 94, 15, -173, 39, 171,
                    8, 6, 168, 180, 79, -93, 119, 61, 1, 115, 105, 132, 24, 125, 120, 62, 127, -16, 104, 163, 49, 130,
                    48, 27, 186, 4, 91,
                ],
                &[
                    1, 130, 132, 4, 6, 135, 8, 9, 141, 24, 25, 27, 157, 159, 31, 161, 163, 165, 167, 39, 41, 168, 171,
                    48, 49, 51, 180, 182, 54, 55, 57, 185, 186, 60, 61, 62, 192, 65, 79, 87, 89, 91, 120, 94, 95, 98,
                    99, 101, 104, 105, 109, 115, 116, 118, 119, 123, 125, 127,
                ],
            ),
        ];
        for (changes, expected) in cases {
            let mut ids = InputIds::default();
            for &change in *changes {
                let is_change = match u32::try_from(change) {
                    Ok(id) => ids.insert(id),
                    Err(_) => ids.remove(!change as u32),
                };
                assert!(is_change, "{change} of {changes:?}");
            }
            assert_eq!(ids.iter().collect::<Vec<u32>>(), *expected, "{changes:?}");
        }
    }

    #[test]
    fn an_id_is_there_once() {
        let mut ids = InputIds::default();
        assert!(!ids.remove(3) && ids.insert(3) && !ids.insert(3) && ids.remove(3) && !ids.remove(3) && ids.is_empty());
    }
}
