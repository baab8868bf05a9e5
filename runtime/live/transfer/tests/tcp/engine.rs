//! Engines with TCP planes, and transfers between them.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::*;

/// Far longer than any test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn geometry(ranks: u32) -> Geometry {
    let input = GeometryInput {
        layers: 3,
        kv_heads: 4,
        slice_bytes: 512,
        ranks,
        blocks: 64,
        block_tokens: 16,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    };
    Geometry::new(input).expect("the sizes fit")
}

/// An engine's plane, and the events that were polled and not taken.
pub(crate) struct Engine {
    pub(crate) plane: TcpPlane,
    pub(crate) arena: Arc<Arena>,
    pub(crate) bell: Arc<(Mutex<bool>, Condvar)>,
    pub(crate) events: Vec<PlaneEvent>,
}

pub(crate) fn settings() -> TcpSettings {
    TcpSettings { connect_timeout: Duration::from_secs(2), patience: Duration::from_secs(2), ..TcpSettings::default() }
}

impl Engine {
    pub(crate) fn new(name: &str, geometry: Geometry) -> Self {
        Self::with(name, geometry, 1, settings())
    }

    pub(crate) fn with(name: &str, geometry: Geometry, generation: u64, settings: TcpSettings) -> Self {
        let arena = Arc::new(Arena::new(geometry, None).expect("it is small"));
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let ring = Arc::clone(&bell);
        let wake: Wake = Arc::new(move || {
            *ring.0.lock().expect("no holder panicked") = true;
            ring.1.notify_all();
        });
        let (engine_id, arena_of_plane) = (name.to_owned(), Arc::clone(&arena));
        let context = PlaneContext { engine_id, rank: 0, generation, arena: arena_of_plane, wake };
        let plane = TcpPlane::new(context, settings).expect("any port will do");
        Self { plane, arena, bell, events: Vec::new() }
    }

    pub(crate) fn peer(&self, name: &str) -> Peer {
        peer(self.plane.port(), name)
    }

    pub(crate) fn hold(&mut self, request: &str, blocks: &[u32]) {
        let blocks = blocks.iter().map(|block| Held { block: *block, content: content(*block) }).collect();
        self.plane.hold(Hold { request: request.to_owned(), blocks });
    }

    pub(crate) fn next(&mut self) -> PlaneEvent {
        self.next_within(PATIENCE).expect("an event comes")
    }

    pub(crate) fn next_within(&mut self, time: Duration) -> Option<PlaneEvent> {
        let end = Instant::now() + time;
        loop {
            self.plane.poll(&mut self.events);
            if !self.events.is_empty() {
                return Some(self.events.remove(0));
            }
            let mut rang = self.bell.0.lock().expect("no holder panicked");
            while !*rang {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                rang = self.bell.1.wait_timeout(rang, left).expect("no holder panicked").0;
            }
            *rang = false;
        }
    }

    /// The outcome of a transfer, whose end must be the next event.
    pub(crate) fn outcome(&mut self, id: u64) -> Result<Moved, TransferError> {
        match self.next() {
            PlaneEvent::Finished { id: found, outcome } if found == id => outcome,
            other => panic!("expected the end of {id}, got {other:?}"),
        }
    }

    pub(crate) fn failure(&mut self, id: u64) -> (ErrorKind, String) {
        let error = self.outcome(id).expect_err("it fails");
        (error.kind, error.message)
    }

    pub(crate) fn has_content(&self, block: u32, content: u64) -> bool {
        let geometry = *self.arena.geometry();
        let pages = (0..geometry.ranks()).flat_map(|rank| (0..geometry.regions()).map(move |region| (rank, region)));
        pages.into_iter().all(|(rank, region)| {
            let span = Span { rank, region, block, offset: 0, bytes: geometry.page_bytes() };
            self.arena.first_wrong(&span, content).is_none()
        })
    }
}

pub(crate) fn peer(port: u16, name: &str) -> Peer {
    Peer { host: "127.0.0.1".to_owned(), port, engine_id: name.to_owned(), generation: None }
}

pub(crate) fn content(block: u32) -> u64 {
    0x1000 + u64::from(block)
}

pub(crate) fn transfer(id: u64, peer: Peer, request: &str, pairs: &[(u32, u32)]) -> Transfer {
    let pair = |(local, remote): &(u32, u32)| BlockPair { local: *local, remote: *remote, content: content(*remote) };
    Transfer {
        id,
        direction: Direction::Read,
        peer,
        request: request.to_owned(),
        blocks: pairs.iter().map(pair).collect(),
        notice: Some(Notice::read(request, 1)),
        timeout: PATIENCE,
        corrupts: false,
    }
}
