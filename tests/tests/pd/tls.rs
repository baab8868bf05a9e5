//! KV over TCP with TLS between two processes.

use std::path::Path;

use vcr_tests::{Authority, Folder};

use super::moving::{Moving, completion_tokens, prompt};

const SHAPE: &str = "2x4x16";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are texts")
}

fn start(certificate: &Path, authority: &Path, more: &[&str]) -> Moving {
    let tls = ["--kv-transfer-tls-cert", text(certificate), "--kv-transfer-tls-ca", text(authority)];
    Moving::with_shape(SHAPE, &[&tls[..], more].concat())
}

/// Each side may connect: the decode engine to read, or the prefill engine to write.
#[test]
fn kv_moves_with_tls_and_certificates_of_both_sides() {
    let authority = Authority::new("one");
    let (certificate, file) = (authority.sign_in_one_file("127.0.0.1"), authority.file());
    for more in [&["--kv-transfer-mode", "pull"][..], &["--kv-transfer-mode", "push", "--kv-transfer-tls-mutual"]] {
        let (prefill, decode) = (start(&certificate, &file, more), start(&certificate, &file, more));
        for number in 0..3 {
            let answer = decode.complete(&prompt(number), 5, &prefill.compute(&prompt(number)));
            assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
        }
        for engine in [&prefill, &decode] {
            engine.is_whole();
            assert_eq!(engine.metric("vcr_kv_transfer_failures_total"), 0.0);
            assert!(!engine.serve.log().contains("WARN"), "{}", engine.serve.log());
        }
        // Three prompts of four blocks, with K and V of two layers and four heads.
        decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", 12.0 * (2 * 2 * 4 * 16 * 16 * 2) as f64);
    }
}

/// The error of a request whose decode engine cannot read the KV.
#[track_caller]
fn refused(prefill: &Moving, decode: &Moving, log_of_prefill: &str) -> String {
    let answer = decode.complete(&prompt(0), 5, &prefill.compute(&prompt(0)));
    assert_eq!(answer.status, 503, "{}", answer.body);
    vcr_tests::wait_until(log_of_prefill, || prefill.serve.log().contains(log_of_prefill));
    format!("{}\n{}", answer.body, decode.serve.log())
}

#[test]
fn peers_without_tls_or_of_other_authorities_are_refused() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let (certificate, file) = (authority.sign_in_one_file("127.0.0.1"), authority.file());
    let (foreign, foreign_file) = (other.sign_in_one_file("127.0.0.1"), other.file());
    let secured = start(&certificate, &file, &[]);
    let plain = Moving::with_shape(SHAPE, &[]);
    let error = refused(&secured, &plain, "the peer speaks no TLS");
    assert!(error.contains("KV transfers here need TLS: give the peer --kv-transfer-tls-cert"), "{error}");
    let error = refused(&plain, &secured, "this engine has no --kv-transfer-tls-cert");
    assert!(error.contains("the peer speaks no TLS: does it have --kv-transfer-tls-cert?"), "{error}");
    // The reader does not trust the authority of the prefill engine.
    let stranger = start(&foreign, &foreign_file, &[]);
    let error = refused(&secured, &stranger, "a KV connection was refused");
    assert!(error.contains("the peer's certificate is not signed by an authority of --kv-transfer-tls-ca"), "{error}");
    // The prefill engine does not trust the reader's certificate.
    let strict = start(&certificate, &file, &["--kv-transfer-tls-mutual"]);
    let half = start(&foreign, &file, &[]);
    let error = refused(&strict, &half, "a KV connection was refused");
    assert!(error.contains("the peer refuses"), "{error}");
    // A certificate for another host.
    let elsewhere = start(&authority.sign_in_one_file("elsewhere.example"), &file, &[]);
    let error = refused(&elsewhere, &secured, "a KV connection was refused");
    assert!(error.contains("the peer's certificate is invalid"), "{error}");
}

#[test]
fn unusable_files_and_options_are_told_at_start() {
    let authority = Authority::new("one");
    let (certificate, file) = (authority.sign_in_one_file("127.0.0.1"), authority.file());
    let broken = authority.write("broken.pem", "no certificate");
    let missing = authority.path("missing.pem");
    let (certificate, file) = (text(&certificate), text(&file));
    let folder = Folder::new();
    let play = |args: &[&str]| folder.vcr(&[&["play", "--kv-transfer", "tcp", "--kv-shape", SHAPE][..], args].concat());
    for (args, message) in [
        (["--kv-transfer-tls-cert", text(&broken), "--kv-transfer-tls-ca", file], "invalid certificate"),
        (["--kv-transfer-tls-cert", text(&missing), "--kv-transfer-tls-ca", file], "invalid certificate"),
        (["--kv-transfer-tls-cert", certificate, "--kv-transfer-tls-ca", text(&broken)], "invalid CA certificate"),
        // The authority's file contains no key.
        (["--kv-transfer-tls-cert", file, "--kv-transfer-tls-ca", file], "invalid TLS key"),
    ] {
        play(&args).failed(2, &[message, "see --kv-transfer-tls-cert"]);
    }
    play(&["--kv-transfer-tls-cert", certificate]).failed(2, &["--kv-transfer-tls-ca"]);
    let without = ["play", "--kv-transfer-tls-cert", certificate, "--kv-transfer-tls-ca", file];
    folder.vcr(&without).failed(2, &["expected --kv-transfer tcp"]);
}

/// Both processes use the same options.
#[test]
fn kv_bench_measures_encrypted_transfers() {
    let authority = Authority::new("one");
    let (certificate, ca) = (authority.sign_in_one_file("127.0.0.1"), authority.file());
    let tls = ["--kv-transfer-tls-cert", text(&certificate), "--kv-transfer-tls-ca", text(&ca)];
    let sizes = ["--total", "1MiB", "--page", "64KiB", "--repeat", "2"];
    let folder = Folder::new();
    let bench = |args: &[&str]| folder.vcr(&[&["inspect", "kv-bench"], &sizes[..], args].concat());
    let said = bench(&[&tls[..], &["--kv-transfer-tls-mutual", "--json"]].concat()).ended(0).json();
    assert_eq!((said["tls"].as_bool(), said["pages"].as_u64()), (Some(true), Some(16)), "{said}");
    let table = bench(&tls).ended(0);
    assert!(table.stdout.contains("2 streams with TLS, median of 2"), "{}", table.stdout);
    // A certificate for another host than the one connected to.
    let other = authority.sign_in_one_file("prefill.example");
    let wrong = ["--kv-transfer-tls-cert", text(&other), "--kv-transfer-tls-ca", text(&ca)];
    bench(&wrong).failed(2, &["127.0.0.1"]);
    bench(&["--kv-transfer-tls-cert", "nowhere.pem", "--kv-transfer-tls-ca", text(&ca)]).failed(2, &["nowhere.pem"]);
}

/// Certificates expire and are replaced while engines serve. An unusable file changes nothing.
#[test]
fn changed_certificates_are_read_again() {
    let (authority, next) = (Authority::new("one"), Authority::new("next"));
    let own = |name: &str, of: &Path| authority.write(name, &std::fs::read_to_string(of).expect("it was written"));
    let (certificate, file) =
        (own("own.pem", &authority.sign_in_one_file("127.0.0.1")), own("own-ca.pem", &authority.file()));
    let (next_certificate, next_file) = (next.sign_in_one_file("127.0.0.1"), next.file());
    let prefill = start(&certificate, &file, &["--kv-transfer-tls-mutual"]);
    let reads = |decode: &Moving, number: u32| {
        let answer = decode.complete(&prompt(number), 5, &prefill.compute(&prompt(number)));
        assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
    };
    let first = start(&certificate, &file, &[]);
    reads(&first, 0);
    let (_, _) = (own("own.pem", &next_certificate), own("own-ca.pem", &next_file));
    // This engine trusts only the next authority, and now the prefill engine does too.
    reads(&start(&next_certificate, &next_file, &[]), 1);
    prefill.serve.wait_for("the certificates of KV transfers were read again");
    // The first engine's connections are still open.
    reads(&first, 2);
    authority.write("own.pem", "no certificate");
    reads(&start(&next_certificate, &next_file, &[]), 3);
    prefill.serve.wait_for("certificates of KV transfers stay as they were: invalid certificate");
}
