//! An engine that only holds blocks, which others read, such as a real vLLM.
//!
//! It holds every block, with the block's number as its content. It prints its side channel's port and each notice,
//! and ends at the end of its standard input.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use vcr_nixl::{NixlSettings, planes};
use vcr_transfer::{Arena, Geometry, GeometryInput, HeadOrder, Held, Hold, PlaneContext, PlaneEvent, Regions};
use vcr_wire::{NixlCompatibility, VllmMinor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, release, model, backend, layers, kv_heads, head_size, block_tokens, blocks] = &arguments[..] else {
        return Err("usage: hold PORT RELEASE MODEL BACKEND LAYERS KV_HEADS HEAD_SIZE BLOCK_TOKENS BLOCKS".into());
    };
    let number = |text: &String| text.parse::<u32>();
    let minor: Vec<_> = release.split('.').take(2).collect();
    let (layers, kv_heads, head_size) = (number(layers)?, number(kv_heads)?, number(head_size)?);
    let (block_tokens, blocks) = (number(block_tokens)?, number(blocks)?);
    let geometry = Geometry::new(GeometryInput {
        layers,
        kv_heads,
        slice_bytes: block_tokens * head_size * 2,
        ranks: 1,
        blocks,
        block_tokens,
        order: HeadOrder::HeadsFirst,
        regions: Regions::Together,
    })?;
    let settings = NixlSettings {
        side_channel_host: "127.0.0.1".to_owned(),
        side_channel_port: port.parse()?,
        version: minor.join(".").parse::<VllmMinor>()?,
        compatibility: NixlCompatibility {
            vllm_version: release.clone(),
            model: model.clone(),
            dtype: "bfloat16".to_owned(),
            num_kv_heads: kv_heads,
            head_size,
            num_hidden_layers: layers,
            attn_backend_name: backend.clone(),
            cache_dtype: "auto".to_owned(),
            is_hma_enabled: true,
            transfer_mode: "pull".to_owned(),
        },
        hash: None,
        enforces_compatibility: true,
    };
    let (bell, rings) = channel();
    let context = PlaneContext {
        engine_id: "vcr".to_owned(),
        rank: 0,
        generation: 1,
        arena: Arc::new(Arena::new(geometry, None)?),
        wake: Arc::new(move || _ = bell.send(())),
    };
    let mut plane = planes(settings, None)?(context)?;
    let held: Vec<_> = (0..blocks).map(|block| Held { block, content: block.into() }).collect();
    let mut events = Vec::new();
    let mut is_written = plane.write(1, &held);
    while !is_written {
        rings.recv()?;
        plane.poll(&mut events);
        is_written = events.iter().any(|event| matches!(event, PlaneEvent::Written { .. }));
    }
    plane.hold(Hold { request: "cmpl-1".to_owned(), blocks: held });
    println!("side channel {}", plane.port());
    let (end, ended) = channel();
    std::thread::spawn(move || {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        _ = end.send(());
    });
    while ended.try_recv().is_err() {
        _ = rings.recv_timeout(Duration::from_millis(50));
        plane.poll(&mut events);
        for event in events.drain(..) {
            if let PlaneEvent::Notice(notice) = event {
                println!("notice {}", String::from_utf8_lossy(&notice));
            }
        }
    }
    Ok(())
}
