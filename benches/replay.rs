//! Replays a large capture: opens and indexes it, and finds records.
//!
//! Workload: a plain capture of about 1 GB with 1,000,000 requests of 100,000 sessions, ten turns each. Turn `t` has 4
//! (t + 1) blocks of 16 tokens, including the previous turn's, and an incomplete block (22 million block hashes in
//! all), and 24 output tokens with IDs and gaps. Every record is requested once, in an order that mixes sessions.
//! Reported: MB of the file that one core indexes per second; the index's memory by its own count, and the process's
//! memory; and the time of one request, with the hashing of its prompt listed separately. Then the same is measured
//! for an HTTP capture of 100,000 chats of 2 KB, each requested once. There, a lookup reads the answer from the file.

use std::path::Path;
use std::time::Instant;

use vcr_record::playback::http::{Asked, AskedParts, Found, HttpTape, MatchRules};
use vcr_record::playback::{CaptureIndex, CaptureIndexOptions, Lookup, Match, MatchBy, Matcher, Unmatched};
use vcr_trace::capture::{
    BlockHash, CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, CaptureWriter, ExtraKeys,
    HttpBytes, HttpRecord, PromptChain, RequestRecord,
};

const SESSIONS: u64 = 100_000;
const TURNS: u64 = 10;
const BLOCKS_PER_TURN: u64 = 4;
const BLOCK_TOKENS: u32 = 16;
const OUTPUT_TOKENS: u32 = 24;

/// Numbers that look like hashes. They are the same in every run.
fn mixed(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn chain(session: u64, turn: u64, chain: &mut PromptChain) {
    chain.blocks.clear();
    let blocks = BLOCKS_PER_TURN * (turn + 1);
    chain.blocks.extend((0..blocks).map(|block| BlockHash(mixed(session << 10 | block))));
    chain.whole = BlockHash(mixed(session << 10 | 512 | turn));
}

fn prompt_tokens(turn: u64) -> u32 {
    (BLOCKS_PER_TURN * (turn + 1)) as u32 * BLOCK_TOKENS + 5
}

fn write_workload(path: &Path) -> std::io::Result<u64> {
    let meta = CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        block_size_tokens: Some(BLOCK_TOKENS),
        ..CaptureMeta::default()
    };
    let mut writer = CaptureWriter::create(path, meta)?;
    let mut prompt = PromptChain::default();
    for index in 0..SESSIONS * TURNS {
        let (turn, session) = (index / SESSIONS, index % SESSIONS);
        chain(session, turn, &mut prompt);
        let record = RequestRecord {
            id: Some(format!("cmpl-{:016x}", mixed(index))),
            arrival_ns: Some(index * 1_000_000),
            prompt_tokens: prompt_tokens(turn),
            block_hashes: prompt.blocks.clone(),
            prompt_hash: Some(prompt.whole),
            output_tokens: OUTPUT_TOKENS,
            output_token_ids: Some(
                (0..OUTPUT_TOKENS).map(|place| (mixed(index + u64::from(place)) % 128_000) as u32).collect(),
            ),
            ttft_ns: Some(80_000_000),
            gap_ns: (1..OUTPUT_TOKENS).map(|place| 18_000_000 + mixed(index ^ u64::from(place)) % 4_000_000).collect(),
            finish_reason: Some("length".to_owned()),
            end_ns: Some(5_000_000_000),
            ..RequestRecord::default()
        };
        writer.write(&CaptureLine::Request(Box::new(record)))?;
    }
    let requests = SESSIONS * TURNS;
    writer.write(&CaptureLine::End(CaptureEnd { requests, ..CaptureEnd::default() }))?;
    let bytes = writer.written_bytes();
    writer.finish()?;
    Ok(bytes)
}

/// Resident memory of the process in bytes, as the system counts it.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

fn main() {
    // Arguments from Cargo are ignored.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("bench.jsonl");
    let bytes = write_workload(&path).expect("the capture is written");
    let before_bytes = memory_bytes();

    let start = Instant::now();
    let captures = CaptureIndex::open(&path, &CaptureIndexOptions::default()).expect("a capture");
    let took_s = start.elapsed().as_secs_f64();
    let entries: u64 = (1..=TURNS).map(|turns| turns * BLOCKS_PER_TURN * SESSIONS).sum();
    let per_entry = |bytes: u64| bytes as f64 / (u64::from(captures.num_records()) + entries) as f64;
    println!(
        "capture            {} requests, {entries} block hashes, {:.0} MB",
        captures.num_records(),
        bytes as f64 / 1e6
    );
    println!("parse and index    {:.2} s, {:.0} MB/s", took_s, bytes as f64 / 1e6 / took_s);
    let index_bytes = captures.memory_bytes() as u64;
    println!(
        "index              {:.0} MB, {:.1} bytes a record and hash",
        index_bytes as f64 / 1e6,
        per_entry(index_bytes)
    );
    let grown_bytes = memory_bytes() - before_bytes;
    println!(
        "process grew by    {:.0} MB, {:.1} bytes a record and hash",
        grown_bytes as f64 / 1e6,
        per_entry(grown_bytes)
    );

    let hasher = captures.hasher();
    let mut matcher = Matcher::new(captures.into(), MatchBy::Content, Unmatched::Random);
    let mut prompt = PromptChain::default();
    let requests = SESSIONS * TURNS;
    let (mut exact, mut chains_ns) = (0u64, 0);
    let start = Instant::now();
    for index in 0..requests {
        // The factor has no common divisor with the number of requests, so that every request occurs once.
        let index = index * 7_368_787 % requests;
        let (turn, session) = (index % TURNS, index / TURNS);
        let begin = Instant::now();
        chain(session, turn, &mut prompt);
        chains_ns += begin.elapsed().as_nanos() as u64;
        let asked = Lookup { prompt_tokens: prompt_tokens(turn), ..Lookup::of_no_client(&prompt) };
        exact += u64::from(matches!(matcher.take(&asked), Match::Exact(_)));
    }
    let matching_ns = start.elapsed().as_nanos() as u64 - chains_ns;
    println!("matching           {:.2} us a request, {exact} exact", matching_ns as f64 / 1e3 / requests as f64);

    let tokens: Vec<u32> = (0..prompt_tokens(4)).collect();
    let start = Instant::now();
    const HASHED: u32 = 100_000;
    for turn in 0..HASHED {
        hasher.chain_into(&tokens[(turn % 16) as usize..], &ExtraKeys::default(), &mut prompt);
        std::hint::black_box(&prompt);
    }
    let hashing_us = start.elapsed().as_secs_f64() * 1e6 / f64::from(HASHED);
    println!("hashing            {hashing_us:.2} us for a prompt of {} tokens", tokens.len());
    match_http(&folder.path().join("http.jsonl")).expect("the capture is written");
}

/// A chat whose last message is unique.
fn chat(index: u64) -> String {
    let text = "word ".repeat(380);
    format!(
        r#"{{"model":"sim","messages":[{{"role":"system","content":"{text}"}},{{"role":"user","content":"{index}"}}]}}"#
    )
}

fn match_http(path: &Path) -> std::io::Result<()> {
    const EXCHANGES: u64 = 100_000;
    let meta = CaptureMeta { format: CAPTURE_FORMAT.to_owned(), version: CAPTURE_VERSION, ..CaptureMeta::default() };
    let mut writer = CaptureWriter::create(path, meta)?;
    for index in 0..EXCHANGES {
        let record = HttpRecord {
            id: format!("http-{index}"),
            arrival_ns: index * 1_000_000,
            method: "POST".to_owned(),
            path: "/v1/chat/completions".to_owned(),
            request_body: HttpBytes(chat(index).into_bytes()),
            status: Some(200),
            chunks: (0..24)
                .map(|place| (place * 20_000_000, HttpBytes(b"data: {\"choices\":[]}\n\n".to_vec())))
                .collect(),
            ..HttpRecord::default()
        };
        writer.write(&CaptureLine::Http(Box::new(record)))?;
    }
    writer.write(&CaptureLine::End(CaptureEnd::default()))?;
    writer.finish()?;
    let start = Instant::now();
    let tape = HttpTape::open(path, MatchRules::default(), false).expect("a capture");
    println!("HTTP               {EXCHANGES} exchanges, indexed in {:.2} s", start.elapsed().as_secs_f64());
    let (mut found, mut took_ns) = (0_u64, 0);
    for index in 0..EXCHANGES {
        let body = chat(index * 7_368_787 % EXCHANGES);
        let begin = Instant::now();
        let parts =
            AskedParts { method: "POST", path: "/v1/chat/completions", body: body.as_bytes(), ..AskedParts::default() };
        let asked = Asked::of(parts, tape.rules());
        found += u64::from(matches!(tape.take(&asked).expect("the file is there"), Found::Record(_)));
        took_ns += begin.elapsed().as_nanos() as u64;
    }
    println!("matching HTTP      {:.2} us a request, {found} found", took_ns as f64 / 1e3 / EXCHANGES as f64);
    Ok(())
}
