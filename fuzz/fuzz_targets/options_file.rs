//! No text may panic the reader of files of options; a single value or a map is a word.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_frontend::options_file::{Setting, parse};

fuzz_target!(|text: &str| {
    match parse(text) {
        Err(reason) => assert!(reason.starts_with("expected a map of options: "), "{reason}"),
        Ok(settings) => {
            for setting in settings.values() {
                let is_word = matches!(setting, Setting::Bool(_) | Setting::Text(_) | Setting::Map(_));
                assert_eq!(setting.word().is_some(), is_word, "{setting:?}");
            }
        }
    }
});
