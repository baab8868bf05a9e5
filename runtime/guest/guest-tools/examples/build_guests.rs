//! Builds every guest of a workspace, like `vcr guest build`.
//!
//! `cargo run --release -p vcr-guest-tools --example build_guests -- guests`

use std::path::PathBuf;
use std::time::Instant;

use vcr_guest_tools::build::{Options, build_workspace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guests_dir = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "guests".into()));
    let started = Instant::now();
    let built = build_workspace(&guests_dir, &guests_dir.join("dist"), &Options::from_env()?, &mut |event| {
        eprintln!("{event}")
    })?;
    for guest in &built {
        println!("{}  {}", guest.digest, guest.component.display());
    }
    eprintln!("{} guests in {:.1} s", built.len(), started.elapsed().as_secs_f64());
    Ok(())
}
