//! Infers the block size of a Mooncake trace from its first rows.
//!
//! The format does not state the block size. A prompt of `input_length` tokens has `ceil(input_length /
//! block_size)` hash ids, so each row limits the possible block sizes.

use crate::TraceOptions;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::num::NonZeroU32;

/// The two fields of a row that limit the block size.
#[derive(Deserialize)]
struct Lengths {
    #[serde(alias = "input_tokens")]
    input_length: Option<u64>,
    hash_ids: Option<Vec<IgnoredAny>>,
}

/// If a prompt has at least this many ids more than blocks of the default size, the blocks must be smaller. One
/// surplus id proves nothing, because some writers add one too many.
const CLEAR_SURPLUS: u64 = 2;

/// Infers the block size from the complete rows at the start of a trace: the only power of two, or the only number,
/// that fits all rows. `None` if the default fits except for single surplus ids, if several sizes fit, or if none
/// fits.
pub(crate) fn infer(start: &[u8]) -> Option<NonZeroU32> {
    let default = u64::from(TraceOptions::DEFAULT_BLOCK_SIZE.get());
    let (mut least, mut most) = (1_u64, u64::from(u32::MAX));
    let mut is_clear = false;
    // The last row may be cut off.
    let whole = start.iter().rposition(|byte| *byte == b'\n')?;
    for row in start[..whole].split(|byte| *byte == b'\n') {
        let Ok(Lengths { input_length: Some(tokens), hash_ids: Some(ids) }) = serde_json::from_slice(row) else {
            continue;
        };
        let ids = ids.len() as u64;
        if tokens == 0 || ids == 0 {
            continue;
        }
        least = least.max(tokens.div_ceil(ids));
        is_clear |= ids >= tokens.div_ceil(default) + CLEAR_SURPLUS;
        if ids > 1 {
            most = most.min(tokens.div_ceil(ids - 1).saturating_sub(1));
        }
    }
    let fits = |size: u64| (least..=most).contains(&size);
    let is_clear = is_clear || least > default || least == most;
    if fits(default) || !is_clear {
        return None;
    }
    let mut powers = (0..u32::BITS).map(|power| 1_u64 << power).filter(|&size| fits(size));
    let only = match (powers.next(), powers.next()) {
        (Some(power), None) => power,
        _ if least == most => least,
        _ => return None,
    };
    NonZeroU32::new(u32::try_from(only).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inferred(rows: &[(u64, usize)]) -> Option<u32> {
        let row = |(tokens, ids): &(u64, usize)| {
            let ids: Vec<usize> = (0..*ids).collect();
            format!("{{\"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {ids:?}}}\n")
        };
        infer(rows.iter().map(row).collect::<String>().as_bytes()).map(NonZeroU32::get)
    }

    #[test]
    fn the_default_stays_where_it_fits() {
        assert_eq!(inferred(&[(1000, 2), (513, 2), (512, 1)]), None);
    }

    /// From an example of aiperf, which reads the file with blocks of 512 tokens.
    #[test]
    fn a_single_surplus_id_does_not_refute_the_default() {
        assert_eq!(inferred(&[(655, 3)]), None);
        assert_eq!(inferred(&[(655, 3), (672, 3)]), None);
        assert_eq!(inferred(&[(655, 3), (5000, 20)]), Some(256));
    }

    #[test]
    fn rows_together_leave_one_power_of_two() {
        assert_eq!(inferred(&[(100, 7)]), Some(16));
        assert_eq!(inferred(&[(100, 4), (1000, 32)]), Some(32));
        assert_eq!(inferred(&[(2000, 2), (3000, 3)]), Some(1024));
    }

    #[test]
    fn a_size_that_is_no_power_of_two_needs_rows_that_leave_no_other() {
        assert_eq!(inferred(&[(300, 3)]), Some(128));
        assert_eq!(inferred(&[(300, 3), (101, 2)]), Some(100));
        assert_eq!(inferred(&[(96, 1), (97, 2)]), Some(96));
    }

    #[test]
    fn nothing_is_inferred_from_rows_that_contradict_each_other_or_bound_nothing() {
        assert_eq!(inferred(&[(100, 7), (100, 2)]), None);
        assert_eq!(inferred(&[(700, 1)]), None, "any size from 700 on");
        assert_eq!(inferred(&[]), None);
        assert_eq!(infer(b"{\"input_length\": 100, \"hash_ids\": [1,2,3,4,5,6,7]}"), None, "the row may go on");
        assert_eq!(infer(b"\xff\n{\n[]\n"), None);
    }
}
