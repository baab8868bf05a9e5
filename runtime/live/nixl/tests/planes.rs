//! Planes with the real library, in one process and between processes.
//!
//! The library comes from `pip install nixl`; in CI, `tests/frontends/clients.sh nixl` installs it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use vcr_nixl::{NixlPlane, NixlSettings, open_library};
use vcr_transfer::{
    Arena, BlockPair, Direction, ErrorKind, Expected, Geometry, GeometryInput, HeadOrder, Held, Hold, Notice, Peer,
    Plane, PlaneContext, PlaneEvent, Regions, Transfer,
};
use vcr_wire::{
    Blob, NixlAgentMetadata, NixlCompatibility, NixlHandshake, NixlQuery, NoticeBoard, Transport, VllmMinor,
};

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

static LISTENS_HERE: Once = Once::new();

/// Whether the library is installed; prints a message if not.
fn has_library() -> bool {
    LISTENS_HERE.call_once(listen_on_this_machine_only);
    let folder = std::env::var_os("VCR_FRONTENDS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../target/frontends"));
    let packages = folder.join("clients/nixl/lib");
    let named = packages.read_dir().into_iter().flatten().flatten().find_map(|python| {
        let packages = python.path().join("site-packages").read_dir().ok()?;
        let libraries = packages.flatten().map(|entry| entry.path().join("libnixl_capi.so"));
        libraries.into_iter().find(|library| library.is_file())
    });
    match open_library(named.as_deref()) {
        Ok(_) => true,
        Err(error) => {
            vcr_skips::skip(&format!("{error}; run tests/frontends/clients.sh nixl"));
            false
        }
    }
}

#[expect(unsafe_code, reason = "UCX has no other way to be told")]
fn listen_on_this_machine_only() {
    // SAFETY: no part of UCX runs yet, and all other readers of variables use the standard library, which has a
    // lock.
    unsafe { std::env::set_var("UCX_NET_DEVICES", "lo") };
}

fn settings(port: u16) -> Arc<NixlSettings> {
    Arc::new(NixlSettings {
        side_channel_host: "127.0.0.1".to_owned(),
        side_channel_port: port,
        version: VllmMinor::V0_33,
        compatibility: NixlCompatibility {
            vllm_version: "0.33.0".to_owned(),
            model: "sim".to_owned(),
            dtype: "bfloat16".to_owned(),
            num_kv_heads: 4,
            head_size: 64,
            num_hidden_layers: 2,
            attn_backend_name: "FLASH_ATTN".to_owned(),
            cache_dtype: "auto".to_owned(),
            is_hma_enabled: true,
            transfer_mode: "pull".to_owned(),
        },
        hash: None,
        enforces_compatibility: true,
    })
}

fn geometry(ranks: u32, blocks: u32) -> Geometry {
    let input = GeometryInput {
        layers: 2,
        kv_heads: 4,
        slice_bytes: 4096,
        ranks,
        blocks,
        block_tokens: 16,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    };
    Geometry::new(input).expect("the sizes fit")
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

struct Engine {
    arena: Arc<Arena>,
    plane: NixlPlane,
    peer: Peer,
    events: Vec<PlaneEvent>,
}

static GENERATION: AtomicU64 = AtomicU64::new(1);

impl Engine {
    fn start(name: &str, ranks: u32, blocks: u32) -> Self {
        Self::with(name, &settings(free_port()), geometry(ranks, blocks))
    }

    fn with(name: &str, settings: &Arc<NixlSettings>, geometry: Geometry) -> Self {
        let arena = Arc::new(Arena::new(geometry, None).expect("it is small"));
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        let context = PlaneContext {
            engine_id: name.to_owned(),
            rank: 0,
            generation,
            arena: Arc::clone(&arena),
            wake: Arc::new(|| ()),
        };
        let plane = NixlPlane::start(settings, context).expect("it starts");
        let peer = Peer {
            host: "127.0.0.1".to_owned(),
            port: plane.port(),
            engine_id: name.to_owned(),
            generation: Some(generation),
        };
        Self { arena, plane, peer, events: Vec::new() }
    }

    /// Waits for an event for which `pick` returns a value, and returns the value.
    #[track_caller]
    fn wait<T>(&mut self, pick: impl Fn(&PlaneEvent) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.plane.poll(&mut self.events);
            if let Some(index) = self.events.iter().position(|event| pick(event).is_some()) {
                let event = self.events.remove(index);
                return pick(&event).expect("it was looked at");
            }
            assert!(start.elapsed() < PATIENCE, "nothing came but {:?}", self.events);
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn finished(&mut self, wanted: u64) -> Result<vcr_transfer::Moved, vcr_transfer::TransferError> {
        self.wait(|event| match event {
            PlaneEvent::Finished { id, outcome } if *id == wanted => Some(outcome.clone()),
            _ => None,
        })
    }

    #[track_caller]
    fn notice(&mut self) -> Vec<u8> {
        self.wait(|event| match event {
            PlaneEvent::Notice(notice) => Some(notice.clone()),
            PlaneEvent::Finished { .. } | PlaneEvent::Written { .. } => None,
        })
    }
}

fn read(id: u64, peer: &Peer, blocks: &[(u32, u32, u64)]) -> Transfer {
    Transfer {
        id,
        direction: Direction::Read,
        peer: peer.clone(),
        request: "cmpl-1".to_owned(),
        blocks: blocks.iter().map(|&(local, remote, content)| BlockPair { local, remote, content }).collect(),
        notice: Some(Notice::read("cmpl-1", 1)),
        timeout: PATIENCE,
        corrupts: false,
    }
}

fn hold(engine: &mut Engine, blocks: &[(u32, u64)]) {
    let blocks: Vec<_> = blocks.iter().map(|&(block, content)| Held { block, content }).collect();
    if !engine.plane.write(5, &blocks) {
        engine.wait(|event| matches!(event, PlaneEvent::Written { id: 5 }).then_some(()));
    }
    engine.plane.hold(Hold { request: "cmpl-1".to_owned(), blocks });
}

#[test]
fn pages_are_read_compared_and_their_owner_is_notified() {
    if !has_library() {
        return;
    }
    // Engines may have different numbers of ranks.
    for (prefill_ranks, decode_ranks) in [(1, 1), (2, 1), (1, 4)] {
        let mut prefill = Engine::start("prefill", prefill_ranks, 32);
        let mut decode = Engine::start("decode", decode_ranks, 16);
        hold(&mut prefill, &[(3, 77), (9, 78), (4, 79)]);
        decode.plane.start(read(1, &prefill.peer, &[(1, 9, 78), (15, 3, 77), (2, 4, 79)]));
        let moved = decode.finished(1).expect("it arrives");
        assert_eq!(moved.bytes, 3 * decode.arena.geometry().block_bytes());
        assert_eq!((decode.arena.content(15), decode.arena.content(2)), (Some(77), Some(79)));
        assert_eq!(Notice::parse(&prefill.notice()), Notice::Read { request: "cmpl-1", readers: Some(1) });
        let statistics = decode.plane.statistics();
        let (name, totals) = statistics.peers().next().expect("there is one peer");
        assert_eq!((name, totals.transfers), (format!("127.0.0.1:{}", prefill.peer.port).as_str(), 1));
    }
}

/// Announced blocks get their pattern soon, even if they are never held. Blocks of a finished prompt have it before
/// the prompt is reported; if they have it already, nothing waits.
#[test]
fn announced_blocks_get_their_pattern() {
    if !has_library() {
        return;
    }
    let mut prefill = Engine::start("prefill", 2, 64);
    assert!(prefill.plane.prepares());
    let content = |block: u32| u64::from(block) + 100;
    prefill.plane.prepare((1..40).map(|block| Held { block, content: content(block) }).collect());
    let held: Vec<_> = (30..50).map(|block| (block, content(block))).collect();
    hold(&mut prefill, &held);
    assert!(held.iter().all(|&(block, content)| prefill.arena.content(block) == Some(content)));
    let again: Vec<_> = held.iter().map(|&(block, content)| Held { block, content }).collect();
    assert!(prefill.plane.write(6, &again));
    let start = Instant::now();
    while (1..40).any(|block| prefill.arena.content(block) != Some(content(block))) {
        assert!(start.elapsed() < PATIENCE, "some blocks have no pattern");
        std::thread::yield_now();
    }
    // A block that was announced but not held is used by another transfer.
    hold(&mut prefill, &[(45, 7)]);
    let mut decode = Engine::start("decode", 1, 64);
    decode.plane.prepare((0..64).map(|block| Held { block, content: 5 }).collect());
    decode.plane.start(read(1, &prefill.peer, &[(9, 45, 7)]));
    assert!(decode.finished(1).is_ok());
    assert_eq!(decode.arena.content(9), Some(7));
}

/// Blocks of an aborted prompt can be reused at once, even if NIXL still writes to them.
#[test]
fn what_is_still_to_be_written_can_be_given_up() {
    if !has_library() {
        return;
    }
    let blocks = |content: u64| (0..256).map(|block| Held { block, content: content + u64::from(block) }).collect();
    let mut prefill = Engine::start("prefill", 1, 256);
    let mut decode = Engine::start("decode", 1, 256);
    hold(&mut prefill, &(0..256).map(|block| (block, 1000)).collect::<Vec<_>>());
    let all: Vec<_> = (0..256).map(|block| (block, block, 1000)).collect();
    for round in 0..10 {
        // NIXL still writes to some of the blocks.
        decode.plane.start(read(3 * round + 10, &prefill.peer, &all));
        decode.plane.cancel(3 * round + 10);
        let wanted: Vec<Held> = blocks(6000 + 1000 * round);
        if !decode.plane.write(3 * round + 11, &blocks(5000 + 1000 * round)) {
            decode.plane.cancel(3 * round + 11);
        }
        let id = 3 * round + 12;
        if !decode.plane.write(id, &wanted) {
            decode.wait(|event| matches!(event, PlaneEvent::Written { id: other } if *other == id).then_some(()));
        }
        assert!(wanted.iter().all(|held| decode.arena.content(held.block) == Some(held.content)));
    }
    assert!(decode.events.is_empty(), "{:?}", decode.events);
}

/// A reader notices that the pattern is not there. Engines do not name blocks before they are written, but a peer may.
#[test]
fn pages_that_are_not_written_yet_are_found_out() {
    if !has_library() {
        return;
    }
    let mut prefill = Engine::start("prefill", 1, 32);
    let mut decode = Engine::start("decode", 1, 16);
    prefill.plane.hold(Hold { request: "cmpl-1".to_owned(), blocks: vec![Held { block: 3, content: 77 }] });
    decode.plane.start(read(1, &prefill.peer, &[(1, 3, 77)]));
    assert_eq!(decode.finished(1).expect_err("nothing is there").kind, ErrorKind::Corrupt);
    hold(&mut prefill, &[(3, 77)]);
    decode.plane.start(read(2, &prefill.peer, &[(1, 3, 77)]));
    assert!(decode.finished(2).is_ok());
}

#[test]
fn failures_have_their_reason() {
    if !has_library() {
        return;
    }
    let mut prefill = Engine::start("prefill", 1, 32);
    let mut decode = Engine::start("decode", 1, 16);
    hold(&mut prefill, &[(3, 77)]);
    let peer = prefill.peer.clone();
    let wrong = |change: &dyn Fn(&mut Transfer)| {
        let mut transfer = read(1, &peer, &[(1, 3, 77)]);
        change(&mut transfer);
        transfer
    };
    type Change = &'static dyn Fn(&mut Transfer);
    let cases: [(Change, ErrorKind, &str); 6] = [
        (&|transfer| transfer.corrupts = true, ErrorKind::Corrupt, "wrong bytes from offset 0"),
        (&|transfer| transfer.blocks[0].content = 5, ErrorKind::Corrupt, "wrong bytes from offset 0"),
        (&|transfer| transfer.blocks[0].remote = 32, ErrorKind::NotHeld, "has no block 32: it has 32"),
        (
            &|transfer| transfer.peer.engine_id = "other".to_owned(),
            ErrorKind::Restarted,
            "is engine prefill, not other",
        ),
        (&|transfer| transfer.peer.generation = Some(0), ErrorKind::Restarted, "has been restarted"),
        (&|transfer| transfer.peer.port = 1, ErrorKind::Unreachable, "127.0.0.1:1 did not answer within 5 s"),
    ];
    for (id, (change, kind, wanted)) in (1..).zip(cases) {
        decode.plane.start(Transfer { id, ..wrong(change) });
        let error = decode.finished(id).expect_err("it fails");
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(wanted), "{error}");
        assert_eq!(decode.arena.content(1), None);
    }
    // The plane still works.
    decode.plane.start(read(9, &peer, &[(1, 3, 77)]));
    assert_eq!(decode.finished(9).map(|moved| moved.pages), Ok(4));
}

#[test]
fn peers_that_do_not_fit_are_refused_by_name() {
    if !has_library() {
        return;
    }
    let mut decode = Engine::start("decode", 1, 16);
    let other = Geometry::new(GeometryInput { layers: 3, ..*geometry(1, 16).input() }).expect("the sizes fit");
    let prefill = Engine::with("prefill", &settings(free_port()), other);
    decode.plane.start(read(1, &prefill.peer, &[(1, 3, 77)]));
    let error = decode.finished(1).expect_err("it fails");
    assert_eq!(error.kind, ErrorKind::Mismatch, "{error}");
    assert!(error.message.contains("6 addresses, expected 4"), "{error}");

    let mut other = (*settings(free_port())).clone();
    other.compatibility.model = "another".to_owned();
    let prefill = Engine::with("prefill", &Arc::new(other), geometry(1, 16));
    decode.plane.start(read(2, &prefill.peer, &[(1, 3, 77)]));
    let error = decode.finished(2).expect_err("it fails");
    assert_eq!(error.kind, ErrorKind::Mismatch, "{error}");
    assert!(error.message.contains("is not compatible: its hash"), "{error}");
}

#[test]
fn a_peer_that_ends_fails_its_readers_and_may_come_back() {
    if !has_library() {
        return;
    }
    let port = settings(free_port());
    let mut decode = Engine::start("decode", 1, 16);
    let mut prefill = Engine::with("prefill", &port, geometry(1, 16));
    hold(&mut prefill, &[(3, 77)]);
    decode.plane.start(read(1, &prefill.peer, &[(1, 3, 77)]));
    assert!(decode.finished(1).is_ok());
    drop(prefill);
    let mut prefill = Engine::with("prefill", &port, geometry(1, 16));
    hold(&mut prefill, &[(3, 78)]);
    decode.plane.start(read(2, &prefill.peer, &[(1, 3, 78)]));
    assert!(decode.finished(2).is_ok(), "it is the one that is wanted");
}

#[test]
fn what_is_given_up_has_no_event_and_its_blocks_can_be_used_again() {
    if !has_library() {
        return;
    }
    let mut prefill = Engine::start("prefill", 1, 512);
    let mut decode = Engine::start("decode", 1, 512);
    let held: Vec<_> = (0..512).map(|block| (block, 1000 + u64::from(block))).collect();
    hold(&mut prefill, &held);
    let all: Vec<_> = held.iter().map(|&(block, content)| (block, block, content)).collect();
    for round in 0..20 {
        let (first, second) = (2 * round + 1, 2 * round + 2);
        decode.plane.start(read(first, &prefill.peer, &all));
        decode.plane.cancel(first);
        // Other contents for the same blocks.
        let shifted: Vec<_> = (0..511).map(|block| (block, block + 1, 1001 + u64::from(block))).collect();
        decode.plane.start(read(second, &prefill.peer, &shifted));
        decode.finished(second).expect("it arrives");
        assert_eq!(decode.arena.content(7), Some(1008));
    }
    assert!(decode.events.iter().all(|event| matches!(event, PlaneEvent::Notice(_))), "{:?}", decode.events);
}

#[test]
fn blocks_are_pushed() {
    if !has_library() {
        return;
    }
    let mut prefill = Engine::start("prefill", 2, 32);
    let mut decode = Engine::start("decode", 1, 16);
    hold(&mut prefill, &[(3, 77), (4, 78)]);
    let blocks = vec![Held { block: 8, content: 77 }, Held { block: 1, content: 78 }];
    let peer = prefill.peer.clone();
    let expected = |id, timeout| {
        let (request, blocks, peer) = ("push-1".to_owned(), blocks.clone(), peer.clone());
        Expected { id, peer, request, blocks, timeout, corrupts: false }
    };
    decode.plane.expect(expected(1, Duration::from_millis(1)));
    assert_eq!(decode.finished(1).expect_err("nobody writes").kind, ErrorKind::TimedOut);

    decode.plane.expect(expected(2, PATIENCE));
    let transfer = Transfer {
        direction: Direction::Write,
        request: "push-1".to_owned(),
        notice: None,
        ..read(5, &decode.peer, &[(3, 8, 77), (4, 1, 78)])
    };
    prefill.plane.start(transfer);
    assert!(prefill.finished(5).is_ok());
    assert!(decode.finished(2).is_ok());
    assert_eq!((decode.arena.content(8), decode.arena.content(1)), (Some(77), Some(78)));
    let name = peer.to_string();
    let received = || {
        let statistics = decode.plane.statistics();
        let of_peer = statistics.peers().find(|(other, _)| *other == name).map(|(_, totals)| totals.received_bytes);
        of_peer.unwrap_or_default()
    };
    let start = Instant::now();
    // The counter changes after the event.
    while received() != 2 * decode.arena.geometry().block_bytes() {
        assert!(start.elapsed() < PATIENCE, "{} bytes are counted", received());
        std::thread::yield_now();
    }
}

#[test]
fn many_agents_start_and_stop() {
    if !has_library() {
        return;
    }
    let table_len = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("the system says it");
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:").map(str::trim)).expect("it has a size");
        line.parse::<u32>().expect("it is a number")
    };
    let before = table_len();
    for _ in 0..2 {
        let agents: Vec<_> = (0..64).map(|index| Engine::start(&format!("engine-{index}"), 1, 4)).collect();
        assert_eq!(agents.len(), 64);
    }
    // If the table grew while agents exist, the threads that need it would wait for more than a minute.
    assert_eq!(table_len(), before, "the table of descriptors was too small");
}

#[test]
fn a_side_channel_that_cannot_listen_is_an_error() {
    if !has_library() {
        return;
    }
    let taken = Engine::start("prefill", 1, 4);
    let arena = Arc::new(Arena::new(geometry(1, 4), None).expect("it is small"));
    let context = |rank| PlaneContext {
        engine_id: "other".to_owned(),
        rank,
        generation: 1,
        arena: Arc::clone(&arena),
        wake: Arc::new(|| ()),
    };
    let error = |port, rank| match NixlPlane::start(&settings(port), context(rank)) {
        Ok(_) => panic!("it cannot listen"),
        Err(error) => error.to_string(),
    };
    assert!(error(taken.peer.port, 0).contains("in use"), "{}", error(taken.peer.port, 0));
    assert!(error(65_535, 1).contains("there is no port 65536"), "{}", error(65_535, 1));
}

/// Any process may be at the address, so NIXL's input is untrusted.
#[test]
fn metadata_that_is_no_agent_is_refused() {
    if !has_library() {
        return;
    }
    let mut decode = Engine::start("decode", 1, 16);
    let transport = Transport::new();
    for (id, agent) in (1..).zip([vec![], vec![7; 40], b"nixlSerDes|".to_vec(), vec![0xff; 70_000]]) {
        let mut board = NoticeBoard::bind(&transport, "tcp://127.0.0.1:*").expect("a port is free");
        let metadata = NixlAgentMetadata {
            engine_id: "prefill".to_owned(),
            agent_metadata: Blob(agent),
            kv_caches_base_addr: vec![0x1000; 4],
            num_blocks: 16,
            block_lens: vec![decode.arena.geometry().page_bytes().into(); 4],
            block_strides: vec![decode.arena.geometry().page_bytes().into(); 4],
            kv_cache_layout: "LBHNC".to_owned(),
            block_size: 16,
            ..NixlAgentMetadata::default()
        };
        let mut encoded = Vec::new();
        metadata.encode(&mut encoded);
        let compatibility_hash = settings(1).compatibility_hash();
        let handshake = NixlHandshake { compatibility_hash, agent_metadata_bytes: Blob(encoded) };
        board.set_metadata(NixlQuery { pp_rank: 0, tp_rank: 0 }, &handshake);
        let port = board.address().rsplit(':').next().and_then(|port| port.parse().ok()).expect("it has a port");
        let peer = Peer { host: "127.0.0.1".to_owned(), port, engine_id: String::new(), generation: None };
        decode.plane.start(read(id, &peer, &[(1, 3, 77)]));
        let start = Instant::now();
        let error = loop {
            assert_eq!(board.try_receive().expect("it works"), None);
            decode.plane.poll(&mut decode.events);
            if let Some(PlaneEvent::Finished { outcome, .. }) = decode.events.pop() {
                break outcome.expect_err("it is not an agent");
            }
            assert!(start.elapsed() < PATIENCE, "nothing came");
            std::thread::yield_now();
        };
        assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
        assert!(error.message.contains("NIXL does not accept its agent"), "{error}");
    }
}
