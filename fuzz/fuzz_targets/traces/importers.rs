//! Every importer: the first byte chooses which, the second the options.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_trace::import::{Format, ImportOptions, import_bytes};

/// Words are tokens, so that data sets can be read.
const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
"model":{"type":"WordLevel","vocab":{"?":0,"a":1,"b":2},"unk_token":"?"}}"#;

fn tokenizer() -> std::path::PathBuf {
    static PATH: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("vcr-fuzz-{}.json", std::process::id()));
        std::fs::write(&path, TOKENIZER).expect("temporary files can be written");
        path
    })
    .clone()
}

fuzz_target!(|bytes: &[u8]| {
    let [which, how, file @ ..] = bytes else { return };
    let format = Format::ALL[usize::from(*which) % Format::ALL.len()];
    let options = ImportOptions {
        lenient: how & 1 == 1,
        block_size_tokens: std::num::NonZeroU32::new(u32::from(how >> 1)),
        tokenizer: (format == Format::Dataset).then(tokenizer),
        ..ImportOptions::default()
    };
    let mut summary = vcr_trace::import::summary::SummaryBuilder::default();
    let mut sink = |line| {
        summary.add(&line);
        Ok(())
    };
    let _ = import_bytes(file, "file", format, &options, &mut sink);
    let _ = Format::detect("file", file);
    let _ = summary.finish();
});
