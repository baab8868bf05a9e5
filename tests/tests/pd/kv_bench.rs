//! `vcr inspect kv-bench`: its figures and its refusals.

use std::net::TcpListener;
use std::time::Duration;

use vcr_tests::{Folder, Running};

use crate::groups::with_nixl;

/// An address whose next port, which plain streams use, is also free.
fn address() -> String {
    let port = (0..100).find_map(|_| {
        let first = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        TcpListener::bind(("127.0.0.1", first.checked_add(1)?)).ok().map(|_| first)
    });
    format!("127.0.0.1:{}", port.expect("two ports in a row are free"))
}

#[test]
fn all_bytes_move_and_are_compared() {
    let folder = Folder::new();
    let args = ["inspect", "kv-bench", "--total", "4MiB", "--page", "64KiB", "--repeat", "3"];
    let said = folder.vcr(&[&args[..], &["--streams", "3", "--json"]].concat()).ended(0).json();
    let sizes = ["total_bytes", "page_bytes", "pages", "streams"].map(|key| said[key].as_u64());
    assert_eq!(sizes, [4 << 20, 64 << 10, 64, 3].map(Some), "{said}");
    for key in ["transfer_ms", "plain_ms"] {
        let times = said[key].as_array().expect("a list of times");
        assert!(times.len() == 3 && times.iter().all(|time| time.as_f64() > Some(0.0)), "{said}");
    }
    let [transfer_ms, plain_ms, share] =
        ["median_transfer_ms", "median_plain_ms", "share_of_plain"].map(|key| said[key].as_f64().expect("a number"));
    assert!((share - plain_ms / transfer_ms).abs() < 1e-9, "{said}");

    let table = folder.vcr(&args).ended(0);
    for part in ["4.00 MiB in 64 pages of 64.00 KiB", "every byte compared", "KV transfer", "plain stream", "share"] {
        assert!(table.stdout.contains(part), "`{part}` is not in:\n{}", table.stdout);
    }
}

#[test]
fn pages_move_through_nixl() {
    with_nixl(|plane| {
        let folder = Folder::new();
        let args = ["inspect", "kv-bench", "--total", "4MiB", "--page", "64KiB", "--repeat", "3"];
        let said = folder.vcr(&[&args[..], plane, &["--json"]].concat()).ended(0).json();
        assert_eq!((&said["pages"], &said["kv_transfer"]), (&64.into(), &"nixl".into()), "{said}");
        assert!(said["streams"].is_null() && said["transfer_gb_per_s"].as_f64() > Some(0.0), "{said}");
        let table = folder.vcr(&[&args[..], plane].concat()).ended(0);
        assert!(table.stdout.contains("4.00 MiB in 64 pages of 64.00 KiB, through NIXL"), "{}", table.stdout);
        let tls = ["--kv-transfer-tls-cert", "none.pem", "--kv-transfer-tls-ca", "none.pem"];
        folder.vcr(&[&args[..], plane, &tls].concat()).failed(2, &["none.pem"]);
    });
    let nothing = ["inspect", "kv-bench", "--kv-transfer", "nixl", "--nixl-library", "/nowhere/libnixl_capi.so"];
    Folder::new().vcr(&nothing).failed(2, &["/nowhere/libnixl_capi.so", "pip install nixl"]);
}

/// The sizes are given separately on two hosts, so they may differ.
#[test]
fn two_processes_agree_on_sizes_or_say_so() {
    let address = address();
    let sizes = ["--total", "1MiB", "--page", "16KiB"];
    let listener = Running::start(&[&["inspect", "kv-bench", "--listen", &address], &sizes[..]].concat());
    listener.wait_for("\"plain_port\"");
    let folder = Folder::new();
    let connect = ["inspect", "kv-bench", "--connect", &address, "--repeat", "2", "--json"];
    let said = folder.vcr(&[&connect[..], &sizes].concat()).ended(0).json();
    assert_eq!(said["pages"], 64);
    let other = folder.vcr(&[&connect[..], &["--total", "1MiB", "--page", "32KiB"]].concat());
    other.failed(2, &["KV peer", "differ:", "give both processes the same --total and --page"]);
    // A refused connection leaves nothing behind.
    let _ = folder.vcr(&[&connect[..], &sizes].concat()).ended(0);
}

#[test]
fn sizes_and_addresses_that_cannot_be_used_are_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let taken = taken.local_addr().expect("it has an address").to_string();
    let folder = Folder::new();
    for (args, wanted) in [
        (&["--total", "100B", "--page", "64B"][..], "expected an even number of pages of 64 bytes"),
        (&["--total", "1MiB", "--page", "0B"], "expected an even number of pages of 0 bytes"),
        (&["--page", "4GiB", "--total", "8GiB"], "invalid --page 4294967296: expected less than 4 GiB"),
        // More memory than any machine has.
        (&["--total", "1048576GiB", "--page", "1GiB"], "the KV arena needs 1125899906842624 bytes"),
        (&["--listen", &taken], "cannot listen at 127.0.0.1:"),
        (&["--listen", "nonsense"], "invalid --listen `nonsense`: expected HOST:PORT"),
        (&["--listen", "127.0.0.1:99999"], "invalid --listen `127.0.0.1:99999`: expected HOST:PORT"),
        (&["--connect", ":1"], "invalid --connect `:1`: expected HOST:PORT"),
        (&["--connect", "127.0.0.1:65535"], "the next port is that of plain streams"),
        (&["--connect", "127.0.0.1:1"], "the plain stream from 127.0.0.1:2 failed"),
        (&["--connect", "no-such-host.invalid:1"], "the plain stream from no-such-host.invalid:2 failed"),
        (&["--connect", "127.0.0.1:1", "--listen", "127.0.0.1:1"], "cannot be used with"),
    ] {
        folder.vcr(&[&["inspect", "kv-bench"], args].concat()).failed(2, &[wanted]);
    }
}

#[test]
fn a_peer_that_dies_is_an_error() {
    let sizes = ["--total", "8MiB", "--page", "16KiB"];
    let address = address();
    let mut listener = Running::start(&[&["inspect", "kv-bench", "--listen", &address], &sizes[..]].concat());
    listener.wait_for("\"plain_port\"");
    // There are so many repetitions that the measurement cannot finish before the peer stops.
    let connect = ["inspect", "kv-bench", "--connect", &address, "--repeat", "100000"];
    let mut reader = Running::start(&[&connect[..], &sizes].concat());
    std::thread::sleep(Duration::from_millis(300));
    listener.kill();
    assert_eq!(reader.wait().code(), Some(2), "{}", reader.log());
    let line = reader.wait_for("error: ");
    let port = address.rsplit(':').next().expect("a port");
    assert!(line.contains("127.0.0.1") && (line.contains(port) || line.contains("plain stream")), "{line}");
}
