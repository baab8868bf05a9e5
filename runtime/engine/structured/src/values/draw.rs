//! Random choices.

use vcr_guest_sdk::Rng;

pub(crate) fn below(rng: &mut Rng, end: u32) -> u32 {
    ((u64::from(rng.next_u32()) * u64::from(end)) >> 32) as u32
}

pub(crate) fn pick<'a, T>(items: &'a [T], rng: &mut Rng) -> Option<&'a T> {
    if items.is_empty() { None } else { items.get(below(rng, items.len() as u32) as usize) }
}
