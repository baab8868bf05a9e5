//! No bytes may panic the reader of captures, in either format; accepted ones can be written in
//! both, and read back unchanged in ours.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_trace::capture::{CaptureLine, CaptureReader, ReadOptions, VllmVcrWriter};
use vcr_trace::{Format, Strictness, Trace, TraceOptions};

fuzz_target!(|bytes: &[u8]| {
    for strictness in [Strictness::Lenient, Strictness::Standard, Strictness::Strict] {
        let lenient = strictness == Strictness::Lenient;
        read(bytes, lenient);
        let options = TraceOptions { strictness, first_timestamp_required: !lenient, ..TraceOptions::default() };
        if let Ok(trace) = Trace::read(bytes, "fuzz", Format::Capture, &options) {
            assert!(!trace.requests.is_empty());
        }
    }
});

fn read(bytes: &[u8], lenient: bool) {
    let options = ReadOptions { lenient };
    let Ok(mut reader) = CaptureReader::from_reader(bytes, "fuzz", &options) else {
        return;
    };
    let mut theirs = VllmVcrWriter::new(std::io::sink(), reader.meta()).expect("a sink takes all");
    let mut ours = serde_json::to_vec(&CaptureLine::Meta(Box::new(reader.meta().clone()))).expect("a line is JSON");
    let mut lines = Vec::new();
    loop {
        match reader.next_line() {
            Ok(None) => break,
            Ok(Some((_, line))) => {
                theirs.write(&line).expect("a sink takes all");
                ours.push(b'\n');
                serde_json::to_writer(&mut ours, &line).expect("a line is JSON");
                lines.push(line);
            }
            // One line is wrong, or nothing after it can be read; it ends in either case.
            Err(_) => continue,
        }
    }
    if reader.summary().skipped_lines > 0 {
        return;
    }
    let mut again = CaptureReader::from_reader(&ours[..], "again", &options).expect("a capture");
    for line in lines {
        let read = again.next_line();
        // Ours knows more rules than theirs, so that a line may be wrong here.
        if again.summary().skipped_lines > 0 {
            return;
        }
        if let Ok(read) = read {
            assert_eq!(read.map(|(_, read)| read), Some(line));
        }
    }
}
