//! No bytes may panic the reader of databases, or keep it busy without end. What it accepts has
//! an answer for every digest, each with a token.
#![no_main]

#[path = "../served.rs"]
mod served;

use libfuzzer_sys::fuzz_target;
use vcr_frontend::answers::parse_database;

/// A database to be damaged.
const WHOLE: &[u8] = include_bytes!("../../runtime/frontend/testdata/answers.sqlite3");

fuzz_target!(|bytes: &[u8]| {
    let (model, _) = served::model();
    let mut damaged = WHOLE.to_vec();
    for change in bytes.chunks_exact(3) {
        let place = usize::from(u16::from_be_bytes([change[0], change[1]]));
        if let Some(byte) = damaged.get_mut(place) {
            *byte = change[2];
        }
    }
    for database in [bytes, &damaged] {
        for table in ["llmd", "texts"] {
            let Ok(list) = parse_database(database, table, model) else { continue };
            assert!(!list.in_turn.is_empty() && list.in_turn.iter().all(|tokens| !tokens.is_empty()));
            assert!(list.by_digest.values().all(|place| *place < list.in_turn.len()));
        }
    }
});
