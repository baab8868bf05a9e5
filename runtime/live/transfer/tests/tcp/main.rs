//! Two TCP planes in one process, connected over loopback.

mod engine;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use vcr_transfer::tcp::frame::{Message, PREFACE_BYTES, PeerInfo, decode_all, preface};
use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::*;

use engine::{Engine, PATIENCE, content, geometry, peer, settings, transfer};

#[test]
fn a_read_moves_exactly_its_blocks_and_notifies() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(2)));
    prefill.hold("r", &[5, 9, 7]);
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 9), (60, 7)]));
    let moved = decode.outcome(1).expect("it is held");
    assert_eq!((moved.bytes, moved.pages), (2 * geometry(2).block_bytes(), 2 * 12));
    assert!(decode.has_content(1, content(9)) && decode.has_content(60, content(7)));
    assert!(!decode.has_content(2, content(9)) && decode.arena.content(1) == Some(content(9)));
    assert_eq!(prefill.next(), PlaneEvent::Notice(b"r:1".to_vec()));
    let statistics = decode.plane.statistics();
    let (name, totals) = statistics.peers().next().expect("one peer");
    assert_eq!((name, totals.received_bytes, totals.transfers), (&*prefill.peer("").to_string(), moved.bytes, 1));
    assert_eq!(
        prefill.plane.statistics().peers().next().map(|(name, totals)| (name.to_owned(), totals.sent_bytes)),
        Some(("d".to_owned(), moved.bytes))
    );
}

#[test]
fn a_full_local_hit_only_notifies() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(2)));
    prefill.hold("r", &[5]);
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[]));
    assert_eq!(decode.outcome(1).map(|moved| (moved.bytes, moved.pages)), Ok((0, 0)));
    assert_eq!(prefill.next(), PlaneEvent::Notice(b"r:1".to_vec()));
}

#[test]
fn pages_are_split_between_engines_of_different_ranks() {
    for (here, there) in [(1, 4), (4, 1), (2, 8), (8, 2)] {
        let (mut prefill, mut decode) = (Engine::new("p", geometry(there)), Engine::new("d", geometry(here)));
        prefill.hold("r", &[5]);
        decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(3, 5)]));
        assert!(decode.outcome(1).is_ok(), "{here} ranks read from {there}");
        assert!(decode.has_content(3, content(5)));
    }
}

#[test]
fn a_push_writes_what_is_expected_and_nothing_else() {
    for ranks in [2, 4] {
        let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(ranks)));
        prefill.hold("r", &[5, 6]);
        let blocks = vec![Held { block: 8, content: content(5) }, Held { block: 9, content: content(6) }];
        let expected = |id, blocks| Expected {
            id,
            peer: peer(1, "p"),
            request: format!("push-{id}"),
            blocks,
            timeout: PATIENCE,
            corrupts: false,
        };
        decode.plane.expect(expected(1, blocks));
        let push = |id, request: &str, pairs: &[(u32, u32)]| {
            let pair =
                |(local, remote): &(u32, u32)| BlockPair { local: *local, remote: *remote, content: content(*local) };
            let blocks = pairs.iter().map(pair).collect();
            Transfer {
                direction: Direction::Write,
                blocks,
                notice: None,
                ..transfer(id, decode.peer("d"), request, &[])
            }
        };
        let (good, foreign, unknown) =
            (push(7, "push-1", &[(5, 8), (6, 9)]), push(8, "push-1", &[(5, 10)]), push(9, "other", &[(5, 8)]));
        prefill.plane.start(foreign);
        assert_eq!(prefill.failure(8).0, ErrorKind::NotHeld);
        prefill.plane.start(unknown);
        assert_eq!(prefill.failure(9).0, ErrorKind::NotHeld);
        prefill.plane.start(good);
        assert_eq!(prefill.outcome(7).map(|moved| moved.bytes), Ok(2 * geometry(2).block_bytes()));
        assert_eq!(decode.outcome(1).map(|moved| moved.bytes), Ok(2 * geometry(2).block_bytes()));
        assert!(decode.has_content(8, content(5)) && decode.has_content(9, content(6)));
    }
}

#[test]
fn a_prompt_that_is_not_held_or_no_longer_is_refused_with_the_reason() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(2)));
    prefill.hold("r", &[5]);
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 6)]));
    let (kind, message) = decode.failure(1);
    assert_eq!(kind, ErrorKind::NotHeld);
    assert!(message.contains("block 6 is not one of prompt `r`"), "{message}");
    prefill.plane.release("r");
    decode.plane.start(transfer(2, prefill.peer("p"), "r", &[(1, 5)]));
    let (kind, message) = decode.failure(2);
    assert_eq!(kind, ErrorKind::NotHeld);
    assert!(message.contains("prompt `r` is not held here: its lease has ended"), "{message}");
    decode.plane.start(transfer(3, prefill.peer("p"), "r", &[(1, 64)]));
    assert_eq!(decode.failure(3).0, ErrorKind::NotHeld, "there is no block 64");
    assert!(!decode.arena.is_owned(1, 3) && decode.arena.content(1).is_none());
}

#[test]
fn other_layouts_and_restarted_engines_are_refused_by_name() {
    let flat = Geometry::new(GeometryInput { block_tokens: 32, ..*geometry(2).input() }).expect("the sizes fit");
    let (mut prefill, mut decode) = (Engine::new("p", flat), Engine::new("d", geometry(2)));
    prefill.hold("r", &[5]);
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 5)]));
    let (kind, message) = decode.failure(1);
    assert_eq!(kind, ErrorKind::Mismatch);
    assert!(message.contains("tokens of a block differ: 16 here, 32 at the peer"), "{message}");
    decode.plane.start(transfer(2, prefill.peer("q"), "r", &[(1, 5)]));
    assert_eq!(decode.failure(2).0, ErrorKind::Restarted, "it is another engine");
    let earlier = Peer { generation: Some(0), ..prefill.peer("p") };
    decode.plane.start(transfer(3, earlier, "r", &[(1, 5)]));
    let (kind, message) = decode.failure(3);
    assert_eq!(kind, ErrorKind::Restarted);
    assert!(message.contains("was restarted since it computed the prompt"), "{message}");
}

/// The connection to the engine's first run is dead, but must not fail the next transfer.
#[test]
fn an_engine_that_comes_back_is_found_again() {
    let mut decode = Engine::new("d", geometry(2));
    let mut prefill = Engine::new("p", geometry(2));
    let port = prefill.plane.port();
    prefill.hold("r", &[5]);
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 5)]));
    assert!(decode.outcome(1).is_ok());
    drop(prefill);
    decode.plane.start(transfer(2, peer(port, "p"), "r", &[(1, 5)]));
    assert_eq!(decode.failure(2).0, ErrorKind::Unreachable);
    let mut prefill = Engine::with("p", geometry(2), 2, TcpSettings { port, ..settings() });
    prefill.hold("r", &[5]);
    let again = Peer { generation: Some(2), ..peer(port, "p") };
    decode.plane.start(transfer(3, again, "r", &[(1, 5)]));
    assert!(decode.outcome(3).is_ok());
}

#[test]
fn a_peer_that_never_answers_ends_by_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let mut decode = Engine::new("d", geometry(2));
    let port = silent.local_addr().expect("it has one").port();
    let timeout = Duration::from_millis(100);
    decode.plane.start(Transfer { timeout, ..transfer(1, peer(port, "p"), "r", &[(1, 5)]) });
    let (kind, message) = decode.failure(1);
    assert_eq!(kind, ErrorKind::TimedOut);
    assert!(message.contains(&format!("127.0.0.1:{port}")), "{message}");
    let mut expecting = Engine::new("e", geometry(2));
    let blocks = vec![Held { block: 1, content: 1 }];
    let expected = Expected { id: 4, peer: peer(9, "p"), request: "x".to_owned(), blocks, timeout, corrupts: false };
    expecting.plane.expect(expected);
    assert_eq!(expecting.failure(4).0, ErrorKind::TimedOut);
}

/// A server that answers each connection with these bytes; returns its port.
fn impostor(answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = listener.local_addr().expect("it has one").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut opening = [0; PREFACE_BYTES];
            _ = stream.read_exact(&mut opening);
            _ = stream.write_all(&answer);
            // Wait until the peer closes the connection.
            _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    port
}

#[test]
fn peers_that_lie_fail_the_transfer_and_not_the_engine() {
    let mut decode = Engine::new("d", geometry(2));
    let layout_hash = geometry(2).layout_hash();
    let peer_info = PeerInfo { engine_id: "p".to_owned(), generation: 1, geometry: geometry(2), layout_hash };
    let welcome = |rest: &[Message]| {
        let messages = [Message::Welcome(peer_info.clone())];
        let frames: Vec<u8> = messages.iter().chain(rest).flat_map(Message::encode).collect();
        [&preface()[..], &frames].concat()
    };
    let mut version = preface();
    version[8] = 9;
    let mut oversized = welcome(&[]);
    oversized.extend([5, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]);
    let truncated = welcome(&[])[..40].to_vec();
    let wrong_length = welcome(&[Message::Data { batch: 0, bytes: 1 << 40 }]);
    let mut garbage = welcome(&[Message::Data { batch: 0, bytes: geometry(2).block_bytes() }]);
    garbage.resize(garbage.len() + geometry(2).block_bytes() as usize + 8, 0xab);
    let cases: [(&str, Vec<u8>, ErrorKind, &str); 7] = [
        ("http", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), ErrorKind::Protocol, "does not speak the KV protocol"),
        ("version", version.to_vec(), ErrorKind::Protocol, "has version 9"),
        ("oversized", oversized, ErrorKind::Protocol, "exceeds the limit"),
        ("truncated", truncated, ErrorKind::TimedOut, "did not answer in time"),
        ("length", wrong_length, ErrorKind::Protocol, "another length than requested"),
        ("garbage", garbage, ErrorKind::Protocol, "malformed trailer"),
        ("unasked", welcome(&[Message::Pong]), ErrorKind::Protocol, "expected the answer to a batch"),
    ];
    for (id, (name, answer, kind, text)) in (1..).zip(cases) {
        decode.plane.start(transfer(id, peer(impostor(answer), "p"), "r", &[(1, 5)]));
        let (found, message) = decode.failure(id);
        assert_eq!(found, kind, "{name}: {message}");
        assert!(message.contains(text), "{name}: {message}");
    }
    let mut prefill = Engine::new("p", geometry(2));
    prefill.hold("r", &[5]);
    decode.plane.start(transfer(100, prefill.peer("p"), "r", &[(1, 5)]));
    assert!(decode.outcome(100).is_ok());
}

/// Readers are not trusted either.
#[test]
fn requests_that_lie_are_refused_and_others_served() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(2)));
    prefill.hold("r", &[5]);
    let layout_hash = geometry(2).layout_hash();
    let peer_info = PeerInfo { engine_id: "x".to_owned(), generation: 1, geometry: geometry(2), layout_hash };
    let hello = [&preface()[..], &Message::Hello(peer_info).encode()].concat();
    let page = geometry(2).page_bytes();
    let span = Span { rank: 0, region: 0, block: 5, offset: 0, bytes: page };
    for (span, text) in [
        (Span { rank: 2, ..span }, "there is no page part"),
        (Span { region: 6, ..span }, "there is no page part"),
        (Span { block: 64, ..span }, "there is no page part"),
        (Span { offset: 1, ..span }, "there is no page part"),
        (Span { bytes: 0, ..span }, "there is no page part"),
        (Span { block: 6, ..span }, "not one of prompt"),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", prefill.plane.port())).expect("it listens");
        let read = Message::Read { batch: 3, request: "r".to_owned(), spans: vec![span] };
        stream.write_all(&[&hello[..], &read.encode()].concat()).expect("it is read");
        stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let messages = decode_all(&answer).expect("they are messages");
        let Some(Message::Failed { batch: 3, message, .. }) = messages.get(1) else { panic!("{messages:?}") };
        assert!(message.contains(text), "{message}");
    }
    for garbage in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), hello[..30].to_vec(), vec![0; 100_000]] {
        let mut stream = TcpStream::connect(("127.0.0.1", prefill.plane.port())).expect("it listens");
        _ = stream.write_all(&garbage);
        _ = stream.shutdown(std::net::Shutdown::Write);
        _ = std::io::copy(&mut stream, &mut std::io::sink());
    }
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 5)]));
    assert!(decode.outcome(1).is_ok());
}

#[test]
fn peers_that_do_not_present_themselves_keep_no_other_out() {
    let patient = TcpSettings { connect_timeout: PATIENCE, patience: PATIENCE, ..settings() };
    let (mut prefill, mut decode) = (Engine::new("p", geometry(1)), Engine::with("d", geometry(1), 1, patient));
    prefill.hold("r", &[5]);
    let connect = || TcpStream::connect(("127.0.0.1", prefill.plane.port())).expect("it listens");
    // Some connections send nothing, others begin a message and stop.
    let mut silent: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    let begun: Vec<TcpStream> = (0..90)
        .map(|_| {
            let mut stream = connect();
            stream.write_all(&preface()[..1]).expect("it is taken");
            stream
        })
        .collect();
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 5)]));
    assert!(decode.outcome(1).is_ok());
    // The oldest connections were closed for later ones, long before their time limit.
    let ended = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).expect("it is open");
        stream.read(&mut [0]).map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |bytes| bytes == 0)
    };
    assert!(ended(&mut silent[0]));
    drop((silent, begun));
}

/// Number of threads in this process that serve peers.
#[cfg(target_os = "linux")]
fn serving_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name == "kv-serve\n").count()
}

/// The connection of a peer that has identified itself.
fn greeted(port: u16) -> TcpStream {
    let layout_hash = geometry(1).layout_hash();
    let peer_info = PeerInfo { engine_id: "x".to_owned(), generation: 1, geometry: geometry(1), layout_hash };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is open");
    stream.write_all(&[&preface()[..], &Message::Hello(peer_info.clone()).encode()].concat()).expect("it is taken");
    let welcome = Message::Welcome(PeerInfo { engine_id: "p".to_owned(), ..peer_info }).encode();
    stream.read_exact(&mut vec![0; PREFACE_BYTES + welcome.len()]).expect("it is welcome");
    stream
}

/// Each thread takes 32 MiB of the allocator's address space. With a thread for each peer, 180 peers took 6 GB.
#[test]
fn peers_share_a_few_threads_and_none_waits_for_one_that_stalls() {
    let patient = TcpSettings { connect_timeout: PATIENCE, patience: PATIENCE, ..settings() };
    let prefill_settings = TcpSettings { patience: PATIENCE, ..settings() };
    let mut prefill = Engine::with("p", geometry(1), 1, prefill_settings);
    let mut decode = Engine::with("d", geometry(1), 1, patient);
    prefill.hold("r", &[5]);
    let mut peers: Vec<TcpStream> = (0..180).map(|_| greeted(prefill.plane.port())).collect();
    let (ping, pong) = (Message::Ping.encode(), Message::Pong.encode());
    for _ in 0..2 {
        for peer in &mut peers {
            peer.write_all(&ping).expect("it is taken");
        }
        for peer in &mut peers {
            let mut answer = vec![0; pong.len()];
            peer.read_exact(&mut answer).expect("it is answered");
            assert_eq!(answer, pong);
        }
    }
    // Each peer sends half of a message.
    for peer in &mut peers {
        peer.write_all(&ping[..5]).expect("it is taken");
    }
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 5)]));
    assert!(decode.outcome(1).is_ok());
    // A thread frees its slot shortly before it ends, so for a moment a few more threads can exist.
    #[cfg(target_os = "linux")]
    {
        let deadline = std::time::Instant::now() + PATIENCE;
        let mut threads = serving_threads();
        while !(1..=64).contains(&threads) {
            assert!(std::time::Instant::now() < deadline, "{threads} threads serve");
            std::thread::sleep(Duration::from_millis(1));
            threads = serving_threads();
        }
    }
    drop(peers);
}

#[test]
fn a_corrupt_page_is_found_and_its_block_is_not_used() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(2)));
    prefill.hold("r", &[5]);
    decode.plane.start(Transfer { corrupts: true, ..transfer(1, prefill.peer("p"), "r", &[(1, 5)]) });
    let (kind, message) = decode.failure(1);
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(message.contains("byte 0 of the K page of block 1 in layer 0, rank 0"), "{message}");
    assert_eq!(decode.arena.content(1), None);
}

/// A block of a cancelled transfer that is claimed again must get no bytes of that transfer.
#[test]
fn a_cancelled_transfer_writes_no_more_and_has_no_event() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(2)), Engine::new("d", geometry(2)));
    prefill.hold("a", &(1..60).collect::<Vec<_>>());
    let pairs: Vec<_> = (1..60).map(|block| (block, block)).collect();
    for round in 0..20 {
        let (first, second) = (2 * round + 1, 2 * round + 2);
        decode.plane.start(transfer(first, prefill.peer("p"), "a", &pairs));
        decode.plane.cancel(first);
        let turned: Vec<_> = (1..60).map(|block| (block, 60 - block)).collect();
        decode.plane.start(Transfer { notice: None, ..transfer(second, prefill.peer("p"), "a", &turned) });
        assert!(decode.outcome(second).is_ok());
        assert!((1..60).all(|block| decode.has_content(block, content(60 - block))), "round {round}");
    }
}

/// The prompt stays held for the next reader.
#[test]
fn a_reader_that_dies_while_it_reads_leaves_the_prompt_held() {
    let large = Geometry::new(GeometryInput { slice_bytes: 64 << 10, ..*geometry(1).input() }).expect("the sizes fit");
    let mut prefill = Engine::new("p", large);
    let blocks: Vec<u32> = (0..64).collect();
    prefill.hold("r", &blocks);
    let layout_hash = large.layout_hash();
    let peer_info = PeerInfo { engine_id: "x".to_owned(), generation: 1, geometry: large, layout_hash };
    let bytes = large.page_bytes();
    let spans = blocks.iter().map(|block| Span { rank: 0, region: 0, block: *block, offset: 0, bytes }).collect();
    let read = Message::Read { batch: 0, request: "r".to_owned(), spans };
    let frames = [&preface()[..], &Message::Hello(peer_info).encode(), &read.encode()].concat();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", prefill.plane.port())).expect("it listens");
        stream.write_all(&frames).expect("it is read");
        // Far less than is sent, but more than precedes the pages.
        stream.read_exact(&mut vec![0; 1 << 20]).expect("pages come");
    }
    let mut decode = Engine::new("d", large);
    decode.plane.start(transfer(1, prefill.peer("p"), "r", &[(1, 5), (2, 63)]));
    assert!(decode.outcome(1).is_ok());
    assert_eq!(
        prefill.plane.statistics().peers().find(|(name, _)| *name == "x").map(|(_, peer)| peer.sent_bytes),
        None
    );
}

#[test]
fn a_thousand_transfers_at_once_all_end() {
    let (mut prefill, mut decode) = (Engine::new("p", geometry(1)), Engine::new("d", geometry(1)));
    prefill.hold("r", &(1..64).collect::<Vec<_>>());
    for id in 1..=1000 {
        let block = 1 + (id % 63) as u32;
        decode.plane.start(transfer(id, prefill.peer("p"), "r", &[(block, block)]));
    }
    let mut ended: Vec<_> = (0..1000)
        .map(|_| match decode.next() {
            PlaneEvent::Finished { id, .. } => id,
            event @ (PlaneEvent::Notice(_) | PlaneEvent::Written { .. }) => panic!("{event:?} at the decode engine"),
        })
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, (1..=1000).collect::<Vec<_>>());
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = taken.local_addr().expect("it has one").port();
    let arena = Arc::new(Arena::new(geometry(1), None).expect("it is small"));
    let context = |rank| PlaneContext {
        engine_id: "p".to_owned(),
        rank,
        generation: 1,
        arena: Arc::clone(&arena),
        wake: Arc::new(|| ()),
    };
    let error = |rank, port| match TcpPlane::new(context(rank), TcpSettings { port, ..settings() }) {
        Ok(_) => panic!("it cannot listen"),
        Err(error) => error.to_string(),
    };
    let expected = format!("cannot listen at 127.0.0.1:{port} for KV transfers: ");
    assert!(error(0, port).starts_with(&expected), "{}", error(0, port));
    assert!(error(10, 65_530).contains("exceeds 65535"));
}
