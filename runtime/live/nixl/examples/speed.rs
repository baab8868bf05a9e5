//! Compares the plane with a plain loop of `nixl-sys` calls. Both read the same pages of another process and
//! compare them with the pattern.
//!
//! The program starts itself a second time as the owner of the pages. Options: `--turns N`, the number of turns of
//! the plane and the loop (3); `--reads N`, the number of reads in a turn (default: by size); `--case MIB/KIB`, the
//! sizes of all pages and of one page (repeatable), such as `--case 1/16 --case 1024/256`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nixl_sys::{Agent, AgentConfig, MemType, OptArgs, XferDescList, XferOp};
use vcr_nixl::{NixlPlane, NixlSettings, open_library};
use vcr_transfer::{
    Arena, BlockPair, Direction, Geometry, GeometryInput, HeadOrder, Held, Hold, Peer, Plane, PlaneContext, PlaneEvent,
    Regions, Span, Transfer,
};
use vcr_wire::{MetadataRequest, NixlAgentMetadata, NixlCompatibility, NixlHandshake, NixlQuery, Transport, VllmMinor};

type Failure = Box<dyn std::error::Error>;

/// Total bytes, and bytes per page.
const CASES: [(u64, u32); 4] = [(1 << 20, 16 << 10), (64 << 20, 16 << 10), (64 << 20, 256 << 10), (1 << 30, 256 << 10)];

/// Number of reads in a turn. Small reads need many, because the time of a thread switch varies.
fn rounds(total: u64) -> u64 {
    ((256 << 20) / total).clamp(5, 200)
}

const REGIONS: u32 = 4;

/// The first argument of the process that owns the pages.
const OWNER: &str = "owner";

fn geometry(total: u64, page: u32) -> Result<Geometry, Failure> {
    let blocks = (total / u64::from(REGIONS * page)) as u32;
    Ok(Geometry::new(GeometryInput {
        layers: REGIONS / 2,
        kv_heads: 1,
        slice_bytes: page,
        ranks: 1,
        blocks,
        block_tokens: 16,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Apart,
    })?)
}

fn engine(name: &str, geometry: Geometry) -> Result<(NixlPlane, Arc<Arena>, Receiver<()>), Failure> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let settings = Arc::new(NixlSettings {
        side_channel_host: "127.0.0.1".to_owned(),
        side_channel_port: port,
        version: VllmMinor::V0_33,
        compatibility: NixlCompatibility {
            vllm_version: "0.33.0".to_owned(),
            model: "sim".to_owned(),
            dtype: "bfloat16".to_owned(),
            num_kv_heads: 1,
            head_size: 64,
            num_hidden_layers: REGIONS,
            attn_backend_name: "FLASH_ATTN".to_owned(),
            cache_dtype: "auto".to_owned(),
            is_hma_enabled: true,
            transfer_mode: "pull".to_owned(),
        },
        hash: None,
        enforces_compatibility: true,
    });
    let arena = Arc::new(Arena::new(geometry, None)?);
    let (bell, rings) = channel();
    let (engine_id, wake) = (name.to_owned(), Arc::new(move || _ = bell.send(())));
    let context = PlaneContext { engine_id, rank: 0, generation: 1, arena: Arc::clone(&arena), wake };
    Ok((NixlPlane::start(&settings, context)?, arena, rings))
}

fn own(total: u64, page: u32) -> Result<(), Failure> {
    let (mut plane, arena, rings) = engine("owner", geometry(total, page)?)?;
    let blocks: Vec<_> = (0..arena.geometry().blocks()).map(|block| Held { block, content: block.into() }).collect();
    let mut events = Vec::new();
    let mut is_written = plane.write(1, &blocks);
    while !is_written {
        rings.recv()?;
        plane.poll(&mut events);
        is_written = events.iter().any(|event| matches!(event, PlaneEvent::Written { .. }));
    }
    plane.hold(Hold { request: "all".to_owned(), blocks });
    println!("{}", plane.port());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Every block, in an order in which no two neighbours are consecutive.
fn pairs(blocks: u32) -> Vec<BlockPair> {
    (0..blocks)
        .map(|index| {
            let remote = (u64::from(index) * 7919 % u64::from(blocks)) as u32;
            BlockPair { local: index, remote, content: remote.into() }
        })
        .collect()
}

fn check(arena: &Arena, pairs: &[BlockPair]) -> Result<(), Failure> {
    let bytes = arena.geometry().page_bytes();
    for pair in pairs {
        for region in 0..REGIONS {
            let span = Span { rank: 0, region, block: pair.local, offset: 0, bytes };
            if arena.first_wrong(&span, pair.content).is_some() {
                return Err("wrong bytes".into());
            }
        }
    }
    Ok(())
}

fn median<T: PartialOrd + Copy>(values: &[T]) -> T {
    let mut values = values.to_vec();
    values.sort_by(|one, other| one.partial_cmp(other).expect("times and their ratios are numbers"));
    values[values.len() / 2]
}

struct Options {
    turns: u32,
    reads: Option<u64>,
    cases: Vec<(u64, u32)>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self { turns: 3, reads: None, cases: Vec::new() };
        let (pairs, rest) = arguments.as_chunks::<2>();
        for [name, value] in pairs {
            match name.as_str() {
                "--turns" => options.turns = value.parse::<u32>()?.max(1),
                "--reads" => options.reads = Some(value.parse::<u64>()?.max(1)),
                "--case" => {
                    let (total, page) = value.split_once('/').ok_or("invalid --case: expected MIB/KIB")?;
                    options.cases.push((total.parse::<u64>()? << 20, page.parse::<u32>()? << 10));
                }
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        if !rest.is_empty() {
            return Err(format!("{} lacks its value", rest[0]).into());
        }
        if options.cases.is_empty() {
            options.cases = CASES.to_vec();
        }
        Ok(options)
    }
}

/// The median of some ratios, with the minimum and the maximum.
fn shown(ratios: &[f64]) -> String {
    let bound = |pick: fn(f64, f64) -> f64| ratios.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    format!("{:.2} ({:.2} to {:.2})", median(ratios), bound(f64::min), bound(f64::max))
}

/// A reader's way of waiting for its pages.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    /// Sleeps until the plane wakes it, like an engine without a step.
    Sleep,
    /// Polls, like the loop of `nixl-sys`.
    Look,
}

fn by_plane(port: u16, (total, page): (u64, u32), reads: u64, wait: Wait) -> Result<Vec<Duration>, Failure> {
    let (mut plane, arena, rings) = engine("reader", geometry(total, page)?)?;
    let pairs = pairs(arena.geometry().blocks());
    let peer = Peer { host: "127.0.0.1".to_owned(), port, engine_id: "owner".to_owned(), generation: Some(1) };
    let (mut times, mut events) = (Vec::new(), Vec::new());
    for id in 1..=reads + 1 {
        let start = Instant::now();
        plane.start(Transfer {
            id,
            direction: Direction::Read,
            peer: peer.clone(),
            request: "all".to_owned(),
            blocks: pairs.clone(),
            notice: None,
            timeout: Duration::from_secs(60),
            corrupts: false,
        });
        while events.is_empty() {
            match wait {
                Wait::Sleep => rings.recv()?,
                Wait::Look => std::thread::yield_now(),
            }
            plane.poll(&mut events);
        }
        times.push(start.elapsed());
        for event in events.drain(..) {
            if let PlaneEvent::Finished { outcome, .. } = event {
                outcome?;
            }
        }
    }
    // The first read includes connecting.
    times.remove(0);
    Ok(times)
}

fn by_hand(port: u16, (total, page): (u64, u32), reads: u64) -> Result<Vec<Duration>, Failure> {
    #[derive(Debug)]
    struct Memory(usize, usize);
    impl nixl_sys::MemoryRegion for Memory {
        #[expect(unsafe_code, reason = "the trait has it so")]
        unsafe fn as_ptr(&self) -> *const u8 {
            self.0 as *const u8
        }
        fn size(&self) -> usize {
            self.1
        }
    }
    impl nixl_sys::NixlDescriptor for Memory {
        fn mem_type(&self) -> MemType {
            MemType::Dram
        }
        fn device_id(&self) -> u64 {
            0
        }
    }
    let arena = Arena::new(geometry(total, page)?, None)?;
    let config = AgentConfig { pthr_delay_us: 1000, ..AgentConfig::default() };
    let agent = Agent::new_configured("by-hand", &config)?;
    let (_, params) = agent.get_plugin_params("UCX")?;
    let backend = agent.create_backend("UCX", &params)?;
    let memory = Memory(arena.page_address(0, 0, 0), total as usize);
    let registration = agent.register_memory(&memory, None)?;
    let address = format!("tcp://127.0.0.1:{port}");
    let question = MetadataRequest::send(&Transport::new(), &address, NixlQuery { pp_rank: 0, tp_rank: 0 })?;
    let answer = loop {
        if let Some(answer) = question.try_receive()? {
            break answer;
        }
    };
    let owner = NixlAgentMetadata::decode(&NixlHandshake::decode(&answer)?.agent_metadata_bytes.0)?;
    let name = agent.load_remote_md(&owner.agent_metadata.0)?;
    let mut options = OptArgs::new()?;
    options.add_backend(&backend)?;
    let pairs = pairs(arena.geometry().blocks());
    let mut times = Vec::new();
    for _ in 0..=reads {
        pairs.iter().for_each(|pair| arena.claim(pair.local, 1));
        let start = Instant::now();
        let (mut here, mut there) = (XferDescList::new(MemType::Dram)?, XferDescList::new(MemType::Dram)?);
        for region in 0..REGIONS {
            for pair in &pairs {
                here.add_desc(arena.page_address(0, region, pair.local), page as usize, 0);
                let base = owner.kv_caches_base_addr[region as usize];
                there.add_desc((base + u64::from(pair.remote) * u64::from(page)) as usize, page as usize, 0);
            }
        }
        let request = agent.create_xfer_req(XferOp::Read, &here, &there, &name, Some(&options))?;
        agent.post_xfer_req(&request, Some(&options))?;
        while !agent.get_xfer_status(&request)?.is_success() {
            std::thread::yield_now();
        }
        check(&arena, &pairs)?;
        times.push(start.elapsed());
    }
    times.remove(0);
    drop(registration);
    Ok(times)
}

fn main() -> Result<(), Failure> {
    open_library(None)?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [owner, total, page] = &arguments[..]
        && owner == OWNER
    {
        return own(total.parse()?, page.parse()?);
    }
    let options = Options::parse(&arguments)?;
    println!(
        "{:>8} {:>8} {:>12} {:>12} {:>12} {:>21} {:>21}",
        "total", "page", "plane", "plane, looks", "nixl-sys", "ratio", "ratio, looks"
    );
    for (total, page) in options.cases {
        let mut owner = Command::new(std::env::current_exe()?)
            .args([OWNER.to_owned(), total.to_string(), page.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(owner.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let port = line.trim().parse()?;
        let (mut sleeps, mut looks, mut hand) = (Vec::new(), Vec::new(), Vec::new());
        let (size, reads) = ((total, page), options.reads.unwrap_or_else(|| rounds(total)));
        // The ways alternate, because the load of the machine changes.
        for _ in 0..options.turns {
            sleeps.push(median(&by_plane(port, size, reads, Wait::Sleep)?));
            looks.push(median(&by_plane(port, size, reads, Wait::Look)?));
            hand.push(median(&by_hand(port, size, reads)?));
        }
        drop(owner.stdin.take());
        owner.wait()?;
        let ratio = |(plane, hand): (&Duration, &Duration)| plane.as_secs_f64() / hand.as_secs_f64();
        let [of_sleeps, of_looks] =
            [&sleeps, &looks].map(|plane| shown(&plane.iter().zip(&hand).map(ratio).collect::<Vec<_>>()));
        let [sleeps, looks, hand] = [sleeps, looks, hand].map(|times| median(&times));
        let (mib, kib) = (total >> 20, page >> 10);
        println!(
            "{mib:>4} MiB {kib:>4} KiB {sleeps:>12.3?} {looks:>12.3?} {hand:>12.3?} {of_sleeps:>21} {of_looks:>21}"
        );
    }
    Ok(())
}
