//! The fingerprint of a replay: FNV-1a 64 over its tick records.
//!
//! The layout is vcr's own. Other tools that print a fingerprint of ticks hash other bytes,
//! which are not published, so equal schedules have different fingerprints there.
//!
//! Layout 1: for each tick record in order, its JSON without spaces and with the keys in the
//! order of [`TickRecord`], as UTF-8, then a line break (0x0A). Texts are escaped as by
//! `serde_json`: quotation marks, backslashes and control characters only.

use std::hash::Hasher;

use fnv::FnvHasher;

use crate::ticks::record::TickRecord;

/// Version of the layout; it changes whenever a record's bytes do.
pub const FINGERPRINT_LAYOUT: u32 = 1;

/// The fingerprint as 16 hexadecimal digits.
pub(crate) fn fingerprint(ticks: &[TickRecord]) -> String {
    let mut hasher = FnvHasher::default();
    for tick in ticks {
        let json = serde_json::to_string(tick).expect("a record is JSON");
        hasher.write(json.as_bytes());
        hasher.write(b"\n");
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticks::record::Bound;

    #[test]
    fn the_layout_is_frozen() {
        let tick = TickRecord {
            tick: 3,
            admitted_ids: vec!["a\"b".to_owned()],
            admitted_prefill_tokens: 7,
            decoded_ids: vec!["c".to_owned()],
            decoded_tokens: 1,
            completed_ids: Vec::new(),
            queued: 2,
            active: 2,
            used_kv_pages: 5,
            held_by: Some(Bound::KvPages),
        };
        let bytes = r#"{"tick":3,"admitted_ids":["a\"b"],"admitted_prefill_tokens":7,"decoded_ids":["c"],"decoded_tokens":1,"completed_ids":[],"queued":2,"active":2,"used_kv_pages":5,"held_by":"kv_pages"}"#;
        assert_eq!(serde_json::to_string(&tick).expect("JSON"), bytes);
        // FNV-1a 64 by its definition.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in format!("{bytes}\n").bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        assert_eq!(fingerprint(std::slice::from_ref(&tick)), format!("{hash:016x}"));
        assert_eq!(fingerprint(&[]), "cbf29ce484222325");
    }
}
