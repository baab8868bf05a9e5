//! Text that arrives token by token: whatever the tokens and their combination, the pieces are the
//! text of all of them, and a stop string ends it where it ends the whole.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vcr_text::{Detokenizer, StopStrings, Tokenizer};

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(Tokenizer::builtin)
}

fuzz_target!(|bytes: &[u8]| {
    let [how, stop_len, rest @ ..] = bytes else { return };
    let (skip_special, is_included) = (how & 1 == 1, how & 2 == 2);
    let (stop, rest) = rest.split_at(usize::from(stop_len % 8).min(rest.len()));
    let stops: Vec<String> = String::from_utf8_lossy(stop).split(',').map(str::to_owned).collect();
    let tokenizer = tokenizer();
    // Ids beyond the vocabulary are not text, and do no harm.
    let tokens: Vec<u32> =
        rest.chunks(2).map(|pair| pair.iter().fold(0, |id, byte| id << 8 | u32::from(*byte))).collect();

    let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
    let mut search = StopStrings::new(stops.clone(), is_included);
    let (mut text, mut shown, mut found) = (String::new(), String::new(), None);
    let mut take = |piece: &mut String| {
        text.push_str(piece);
        if found.is_none() {
            found = search.push(piece, true, &mut shown);
        }
        piece.clear();
    };
    let mut piece = String::new();
    for (place, token) in tokens.iter().enumerate() {
        detokenizer.push(*token, &mut piece);
        // Several tokens may come at once.
        if place & usize::from(how >> 2) == 0 {
            take(&mut piece);
        }
    }
    detokenizer.finish(&mut piece);
    take(&mut piece);
    assert_eq!(text, tokenizer.decode(&tokens, skip_special));
    match found {
        None => {
            search.finish(&mut shown);
            assert_eq!(shown, text);
            assert!(stops.iter().all(|stop| stop.is_empty() || !text.contains(stop.as_str())));
        }
        Some(found) => {
            assert_eq!(found.stop, stops[found.index]);
            let end = if is_included { shown.clone() } else { format!("{shown}{}", found.stop) };
            assert!(text.starts_with(&end) && end.ends_with(&found.stop));
        }
    }
});
