//! Numbers the content ids of a file densely, in the order of their first appearance.

use hashbrown::HashMap;

/// Renumbers ids from 0.
///
/// Published traces number their blocks in order. Such ids form one run from the first id seen, and need no lookup.
#[derive(Default)]
pub(crate) struct DenseIds {
    run_start: u64,
    run_len: u32,
    distinct: u32,
    // The maps are looked up, never iterated, so their order has no effect.
    others: HashMap<u64, u32>,
    scoped: HashMap<(u64, u64), u32>,
}

impl DenseIds {
    pub(crate) fn distinct(&self) -> u32 {
        self.distinct
    }

    /// The number of an id that means the same everywhere in the file.
    #[inline]
    pub(crate) fn number(&mut self, id: u64) -> u32 {
        let offset = id.wrapping_sub(self.run_start);
        if offset < u64::from(self.run_len) { offset as u32 } else { self.number_outside_run(id) }
    }

    /// The number of an id that means the same only inside `scope`.
    pub(crate) fn number_in(&mut self, scope: u64, id: u64) -> u32 {
        let distinct = &mut self.distinct;
        *self.scoped.entry((scope, id)).or_insert_with(|| next(distinct))
    }

    /// A new number without an id.
    pub(crate) fn fresh(&mut self) -> u32 {
        next(&mut self.distinct)
    }

    fn number_outside_run(&mut self, id: u64) -> u32 {
        if self.distinct == 0 {
            self.run_start = id;
        }
        // The run grows only while it contains every number in use.
        let is_next = id.wrapping_sub(self.run_start) == u64::from(self.run_len);
        if is_next && self.run_len == self.distinct {
            self.run_len += 1;
            return self.fresh();
        }
        let distinct = &mut self.distinct;
        *self.others.entry(id).or_insert_with(|| next(distinct))
    }
}

/// Returns the next number. There are at most as many numbers as ids, whose count is checked.
fn next(distinct: &mut u32) -> u32 {
    *distinct += 1;
    *distinct - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The run must give the same numbers as a plain map.
        #[test]
        fn numbers_are_in_order_of_first_appearance(
            ids in proptest::collection::vec((0u64..40, any::<bool>()), 0..80), base in any::<u64>(),
        ) {
            let mut dense = DenseIds::default();
            let mut seen: Vec<Option<u64>> = Vec::new();
            for (id, is_fresh) in ids {
                // Sometimes a fresh number, as for a prompt with its own last block.
                if is_fresh && id > 30 {
                    prop_assert_eq!(dense.fresh() as usize, seen.len());
                    seen.push(None);
                    continue;
                }
                let expected = seen.iter().position(|other| *other == Some(id)).unwrap_or_else(|| {
                    seen.push(Some(id));
                    seen.len() - 1
                });
                prop_assert_eq!(dense.number(base.wrapping_add(id)) as usize, expected);
            }
            prop_assert_eq!(dense.distinct() as usize, seen.len());
        }
    }

    #[test]
    fn scopes_share_nothing() {
        let mut dense = DenseIds::default();
        let numbers = [(1, 7), (2, 7), (1, 7), (1, 8)].map(|(scope, id)| dense.number_in(scope, id));
        assert_eq!(numbers, [0, 1, 0, 2]);
    }
}
