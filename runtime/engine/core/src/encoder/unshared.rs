//! Encoder outputs of encoder-decoder models, which no request shares with another (vLLM's `EncoderDecoderCacheManager`,
//! the same from 0.27 to 0.33).
//!
//! Layers of cross attention keep what they need of an item, so its outputs last for a step. The room for them is counted
//! as vLLM counts it: an item takes its room when it is computed, and its request gives that back with each step that is
//! applied, and once more when it ends, is preempted or finds no blocks. So there is ever more room.

/// Room for encoder outputs, and the items whose outputs are there.
#[derive(Debug)]
pub(super) struct UnsharedOutputs {
    num_slots: u32,
    num_free: i64,
    /// Identities of items that are computed in the step that is being decided.
    computed: Vec<u64>,
    /// Those of the step before, whose outputs are not needed any more.
    passed: Vec<u64>,
}

impl UnsharedOutputs {
    pub(super) fn new(num_slots: u32) -> Self {
        Self { num_slots, num_free: num_slots.into(), computed: Vec::new(), passed: Vec::new() }
    }

    /// Makes the room larger if it is less than that.
    pub(super) fn grow_to(&mut self, num_slots: u32) {
        let more = num_slots.saturating_sub(self.num_slots);
        self.num_slots += more;
        self.num_free += i64::from(more);
    }

    /// Forgets all of them.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.num_slots);
    }

    /// Embeddings that take room, by this way of counting.
    pub(super) fn num_used(&self) -> u32 {
        u32::try_from(i64::from(self.num_slots) - self.num_free).unwrap_or(0)
    }

    pub(super) fn has_room(&self, num_embeds: u32) -> bool {
        i64::from(num_embeds) <= self.num_free
    }

    /// An item is computed.
    pub(super) fn take(&mut self, identity: u64, num_embeds: u32) {
        self.num_free -= i64::from(num_embeds);
        self.computed.push(identity);
    }

    /// A request gives the room of its items back, whether they took any or not.
    pub(super) fn give_back(&mut self, num_embeds: u32) {
        self.num_free = self.num_free.saturating_add(num_embeds.into());
    }

    /// A step is decided: lists the items of the step before.
    pub(super) fn take_passed(&mut self, identities: &mut Vec<u64>) {
        identities.append(&mut self.passed);
        std::mem::swap(&mut self.passed, &mut self.computed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_more_often_than_taken() {
        let mut outputs = UnsharedOutputs::new(10);
        assert!(outputs.has_room(10) && !outputs.has_room(11));
        outputs.take(7, 8);
        assert_eq!((outputs.num_used(), outputs.has_room(3)), (8, false));
        outputs.give_back(8);
        outputs.give_back(8);
        assert_eq!((outputs.num_used(), outputs.has_room(18)), (0, true));
        outputs.reset();
        assert!(!outputs.has_room(11));
    }

    #[test]
    fn items_are_listed_a_step_later() {
        let mut outputs = UnsharedOutputs::new(10);
        let mut listed = Vec::new();
        outputs.take(7, 2);
        outputs.take_passed(&mut listed);
        assert!(listed.is_empty());
        outputs.take(8, 2);
        outputs.take_passed(&mut listed);
        assert_eq!(listed, [7]);
        outputs.take_passed(&mut listed);
        assert_eq!(listed, [7, 8]);
    }
}
