//! Pages of finished prompts that are written while the engine continues.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::{
    Arena, Expected, Held, Hold, Peer, Plane, PlaneContext, PlaneEvent, Span, Statistics, Transfer, Wake,
};

use super::planes::{MS, compute, decode, external, is_whole, moving, plane};
use super::transfer::{prefill_only, with_kv};
use super::*;

/// The announced and held blocks, and how pages are written.
#[derive(Default)]
struct Announced {
    prepared: BTreeMap<u32, u64>,
    held: Vec<Held>,
    /// Writes that wait until `may_write`.
    waiting: Vec<u64>,
    /// Cancelled writes.
    cancelled: Vec<u64>,
    is_slow: bool,
    may_write: bool,
    wake: Option<Wake>,
}

/// Lets the plane write the waiting pages.
fn write_now(announced: &Mutex<Announced>) {
    let mut announced = announced.lock().expect("nobody panicked");
    announced.may_write = true;
    announced.wake.as_ref().expect("the plane has started")();
}

/// A plane that gets blocks while they are computed.
struct Preparing {
    plane: TcpPlane,
    announced: Arc<Mutex<Announced>>,
}

impl Plane for Preparing {
    fn name(&self) -> &'static str {
        self.plane.name()
    }
    fn port(&self) -> u16 {
        self.plane.port()
    }
    fn prepares(&self) -> bool {
        true
    }
    fn prepare(&mut self, blocks: Vec<Held>) {
        let mut announced = self.announced.lock().expect("nobody panicked");
        announced.prepared.extend(blocks.iter().map(|held| (held.block, held.content)));
    }
    fn write(&mut self, id: u64, _: &[Held]) -> bool {
        let mut announced = self.announced.lock().expect("nobody panicked");
        if announced.is_slow {
            announced.waiting.push(id);
        }
        !announced.is_slow
    }
    fn hold(&mut self, hold: Hold) {
        self.announced.lock().expect("nobody panicked").held.clone_from(&hold.blocks);
        self.plane.hold(hold);
    }
    fn release(&mut self, request: &str) {
        self.plane.release(request);
    }
    fn start(&mut self, transfer: Transfer) {
        self.plane.start(transfer);
    }
    fn expect(&mut self, expected: Expected) {
        self.plane.expect(expected);
    }
    fn cancel(&mut self, id: u64) {
        let mut announced = self.announced.lock().expect("nobody panicked");
        announced.waiting.retain(|other| *other != id);
        announced.cancelled.push(id);
        self.plane.cancel(id);
    }
    fn notify(&mut self, peer: &Peer, notice: Vec<u8>) {
        self.plane.notify(peer, notice);
    }
    fn poll(&mut self, events: &mut Vec<PlaneEvent>) {
        self.plane.poll(events);
        let mut announced = self.announced.lock().expect("nobody panicked");
        if announced.may_write {
            events.extend(announced.waiting.drain(..).map(|id| PlaneEvent::Written { id }));
        }
    }
    fn statistics(&self) -> Statistics {
        self.plane.statistics()
    }
}

fn preparing(announced: &Arc<Mutex<Announced>>) -> PlaneSettings {
    let announced = Arc::clone(announced);
    let factory = Arc::new(move |context: PlaneContext| {
        announced.lock().expect("nobody panicked").wake = Some(Arc::clone(&context.wake));
        let plane = TcpPlane::new(context, TcpSettings::default())?;
        Ok(Box::new(Preparing { plane, announced: Arc::clone(&announced) }) as Box<dyn Plane>)
    });
    PlaneSettings { factory, ..plane(2, 0, false) }
}

/// With any chunks, cache hits and groups, all held blocks were announced, and no blocks of other requests.
#[test]
fn blocks_are_announced_while_they_are_computed() {
    for groups in [&[][..], &["full", "sliding_window:33"]] {
        let announced = Arc::<Mutex<Announced>>::default();
        let for_plane = Arc::clone(&announced);
        let prefill = moving("p", |config| {
            let kv_cache_groups = groups.iter().map(|group| group.parse().expect("a group")).collect();
            let input = EngineConfigInput {
                kv_cache_groups,
                max_num_batched_tokens: 32,
                max_num_seqs: 8,
                ..EngineConfigInput::default()
            };
            config.engine = engine_config(input);
            config.transfer.plane = Some(preparing(&for_plane));
        });
        // This prompt is not for a decode engine; afterwards its blocks are cached.
        prefill.run("own", &prompt(50), 2);
        assert!(announced.lock().expect("nobody panicked").prepared.is_empty());
        compute(&prefill, "p", &prompt(100));
        let announced = announced.lock().expect("nobody panicked");
        assert!(announced.held.len() >= 7, "{:?}", announced.held);
        for held in &announced.held {
            assert_eq!(announced.prepared.get(&held.block), Some(&held.content), "block {}", held.block);
        }
    }
}

/// The engine continues while pages are written, and nobody can read an unwritten page.
#[test]
fn an_answer_leaves_when_its_pages_are_written() {
    let announced = Arc::new(Mutex::new(Announced { is_slow: true, ..Announced::default() }));
    let prefill = moving("p", |config| config.transfer.plane = Some(preparing(&announced)));
    let decoder = moving("d", |_| ());
    prefill.send(with_kv("late", &prompt(100), 1, prefill_only()));
    prefill.wait_for("it has ended", |snapshot| snapshot.counters.finished[FinishReason::Length as usize] == 1);
    // `run` fails if it receives an output of another request.
    prefill.run("other", &[7; 28], 5);
    let is_held = |snapshot: &Snapshot| snapshot.num_held_prompts == 1;
    assert!(!prefill.handle().snapshots().iter().any(is_held));
    write_now(&announced);
    let answers = prefill.collect(&["late"]);
    assert_eq!((answers[0].finish, answers[0].tokens.len()), (Some(FinishReason::Length), 1));
    let params = answers[0].outputs[0].kv_transfer_params.clone().expect("it is held");
    assert_eq!(external(&decode(&decoder, "d", &prompt(100), params)), 100);
    is_whole(&prefill);
}

/// A shutdown waits for the answer, because its KV would be lost.
#[test]
fn an_engine_that_shuts_down_waits_for_pages() {
    let announced = Arc::new(Mutex::new(Announced { is_slow: true, ..Announced::default() }));
    let prefill = moving("p", |config| {
        config.transfer.plane = Some(preparing(&announced));
        config.shutdown_timeout_ns = 60_000 * MS;
    });
    prefill.send(with_kv("late", &prompt(100), 1, prefill_only()));
    prefill.wait_for("it has ended", |snapshot| snapshot.counters.finished[FinishReason::Length as usize] == 1);
    prefill.handle().shut_down();
    write_now(&announced);
    assert!(prefill.collect(&["late"])[0].outputs[0].kv_transfer_params.is_some());
    prefill.stop().expect("it ends well");
}

/// No decode engine will learn of the prompt, so its blocks are free at once and its answer is never sent.
#[test]
fn an_abort_while_pages_are_written_frees_them() {
    let announced = Arc::new(Mutex::new(Announced { is_slow: true, ..Announced::default() }));
    let prefill = moving("p", |config| config.transfer.plane = Some(preparing(&announced)));
    for id in ["kept", "late"] {
        prefill.send(with_kv(id, &prompt(100), 1, prefill_only()));
    }
    prefill.wait_for("both have ended", |snapshot| snapshot.counters.finished[FinishReason::Length as usize] == 2);
    let waiting = announced.lock().expect("nobody panicked").waiting.clone();
    prefill.send(Request::Abort(vec!["late".to_owned()]));
    prefill.wait_for("it is aborted", |snapshot| snapshot.counters.aborted == 1);
    let cancelled = announced.lock().expect("nobody panicked").cancelled.clone();
    assert_eq!(cancelled, waiting[1..], "the plane writes the other one alone");
    write_now(&announced);
    let answers = prefill.collect(&["kept"]);
    assert!(answers[0].outputs[0].kv_transfer_params.is_some());
    prefill.send(Request::Abort(vec!["late".to_owned()]));
    prefill.nothing_comes();
    let decoder = moving("d", |_| ());
    let params = answers[0].outputs[0].kv_transfer_params.clone().expect("it is held");
    assert_eq!(external(&decode(&decoder, "d", &prompt(100), params)), 100);
    is_whole(&prefill);
}

/// Unwritten pages do not delay the end of an engine, and their request ends with a reason.
#[test]
fn an_engine_that_ends_aborts_what_is_not_written() {
    let announced = Arc::new(Mutex::new(Announced { is_slow: true, ..Announced::default() }));
    let prefill = moving("p", |config| config.transfer.plane = Some(preparing(&announced)));
    prefill.send(with_kv("late", &prompt(100), 1, prefill_only()));
    prefill.wait_for("it has ended", |snapshot| snapshot.counters.finished[FinishReason::Length as usize] == 1);
    prefill.handle().shut_down();
    let answers = prefill.collect(&["late"]);
    assert_eq!(answers[0].finish, Some(FinishReason::Abort));
    assert!(answers[0].outputs[0].kv_transfer_params.is_none());
    assert_eq!(announced.lock().expect("nobody panicked").cancelled.len(), 1);
    prefill.stop().expect("it ends well");
}

/// An engine whose pages nobody can write or move still computes, answers, aborts and accepts requests. Only
/// transfers wait.
#[test]
fn an_engine_waits_for_no_page() {
    let arenas = Arc::<Mutex<Vec<Arc<Arena>>>>::default();
    let watched = || {
        let arenas = Arc::clone(&arenas);
        let factory = Arc::new(move |context: PlaneContext| {
            arenas.lock().expect("nobody panicked").push(Arc::clone(&context.arena));
            Ok(Box::new(TcpPlane::new(context, TcpSettings::default())?) as Box<dyn Plane>)
        });
        PlaneSettings { factory, ..plane(2, 0, false) }
    };
    let prefill = moving("p", |config| config.transfer.plane = Some(watched()));
    let decoder = moving("d", |config| config.transfer.plane = Some(watched()));
    let held = compute(&prefill, "p1", &prompt(100));
    let arenas = arenas.lock().expect("nobody panicked").clone();
    let pages = |arena: &Arena| -> Vec<Span> {
        let page = |block| Span { rank: 0, region: 0, block, offset: 0, bytes: 8 };
        (0..arena.geometry().blocks()).map(page).collect()
    };
    // All pages are locked during this call.
    arenas[0].with_spans(
        &pages(&arenas[0]),
        |_, _| true,
        |_| {
            arenas[1].with_spans(
                &pages(&arenas[1]),
                |_, _| true,
                |_| {
                    compute(&prefill, "p2", &[5; 80]);
                    prefill.run("p3", &[7; 28], 5);
                    decoder.send(with_kv("given-up", &prompt(100), 3, held.clone()));
                    decoder.wait_for("it waits for its KV", |snapshot| snapshot.num_waiting == 1);
                    decoder.run("other", &[7; 28], 5);
                    decoder.send(Request::Abort(vec!["given-up".to_owned()]));
                    is_whole(&decoder);
                    is_whole_but(&prefill, 1);
                },
            )
        },
    );
    let one = decode(&decoder, "d", &[5; 80], compute(&prefill, "p4", &[5; 80]));
    assert_eq!(external(&one), 80);
}

fn is_whole_but(bench: &Bench, held: usize) {
    bench.wait_for("the others are free", |snapshot| snapshot.num_held_prompts == held);
}
