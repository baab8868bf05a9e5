//! `vcr guest bench`.

use std::io::{self, Write};
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};
use vcr_cluster::{RouterConfig, target_autoscaler};
use vcr_core::PluginContext;
use vcr_core::policy::Native;
use vcr_guest::{BenchReport, CallCost, NativeTwin};
use vcr_policy::prefix_affinity::AffinityConfig;
use vcr_policy::target_load::TargetPolicy;
use vcr_policy::{FairShareConfig, ShortestPromptFirstConfig};
use vcr_roofline::{PhysicsConfig, RooflineConfig};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::CheckArgs;
use crate::guest::check::{blamed, load};
use crate::terminal::style::{BOLD, DIM, align_right, bare_table, write_table};

pub(crate) fn bench_command(args: &CheckArgs) -> Exit {
    let (module, config) = match load(&args.path, args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let start = Instant::now();
    let clock_ns = || start.elapsed().as_nanos() as u64;
    let native = || twin(module.name(), config.json(), args.seed);
    let report = match vcr_guest::bench(&module, config.json(), args.seed, &clock_ns, &native) {
        Ok(report) => report,
        Err(error) => {
            print_error(&error, config.hint(&error).as_deref());
            let is_of_config = matches!(&error, vcr_guest::GuestError::Call { call: "configure", .. });
            return if is_of_config { blamed(&error) } else { Exit::Fault };
        }
    };
    let mut out = io::stdout().lock();
    let written = if args.json {
        writeln!(out, "{:#}", row(&report, args.seed))
    } else {
        write_report(&mut anstream::AutoStream::auto(out), &report)
    };
    printed(written, Exit::Passed)
}

/// The native algorithm of a shipped guest; none for other guests, or if only the guest accepts the config.
fn twin(guest: &str, config_json: &str, seed: u64) -> Option<NativeTwin> {
    fn read<'a, T: Deserialize<'a>>(config_json: &'a str) -> Option<T> {
        serde_json::from_str(config_json).ok()
    }
    let context = PluginContext::of_seed(seed);
    Some(match guest {
        "roofline" => {
            let formulas = read::<RooflineConfig>(config_json)?.build().ok()?;
            NativeTwin::Latency(Box::new(vcr_latency::Roofline::new(formulas)))
        }
        "trained-physics" => {
            let formulas = read::<PhysicsConfig>(config_json)?.build().ok()?;
            NativeTwin::Latency(Box::new(vcr_latency::Physics::new(formulas)))
        }
        "shortest-prompt-first" => {
            let policy = read::<ShortestPromptFirstConfig>(config_json)?.build().ok()?;
            NativeTwin::Policy(Box::new(Native(policy)))
        }
        "fair-share" => {
            let policy = read::<FairShareConfig>(config_json)?.build().ok()?;
            NativeTwin::Policy(Box::new(Native(policy)))
        }
        "prefix-affinity" => {
            let router = RouterConfig::PrefixAffinity(read::<AffinityConfig>(config_json)?);
            NativeTwin::Router(router.build(&context).ok()?)
        }
        "target-load" => NativeTwin::Scaler(target_autoscaler(read::<TargetPolicy>(config_json)?)(&context).ok()?),
        _ => return None,
    })
}

fn native<'a>(report: &'a BenchReport, cost: &CallCost) -> Option<&'a CallCost> {
    report.native_calls.iter().find(|native| native.function == cost.function)
}

fn row(report: &BenchReport, seed: u64) -> Value {
    let calls = report.calls.iter().map(|cost| {
        json!({
            "function": cost.function,
            "calls": cost.calls,
            "items": cost.items,
            "median_ns": cost.median_ns,
            "native_median_ns": native(report, cost).map(|native| native.median_ns),
            "fuel_mean": cost.fuel_mean,
            "fuel_most": cost.fuel_most.used,
        })
    });
    json!({
        "guest": report.guest,
        "world": report.world.name(),
        "sha256": report.digest,
        "seed": seed,
        "memory_bytes": report.memory_bytes.used,
        "calls": calls.collect::<Value>(),
    })
}

fn write_report(out: &mut dyn Write, report: &BenchReport) -> io::Result<()> {
    let BenchReport { guest, world, digest, .. } = report;
    writeln!(out, "\n  {BOLD}{guest}{BOLD:#}  {DIM}{}, sha256 {digest}{DIM:#}\n", world.name())?;
    let mut table = bare_table();
    table.add_row(["  function", "calls", "items", "median ns", "native ns", "times", "mean fuel", "most fuel"]);
    for cost in &report.calls {
        let native = native(report, cost);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            format!("  {}", cost.function),
            cost.calls.to_string(),
            format!("{:.1}", cost.items as f64 / cost.calls as f64),
            cost.median_ns.to_string(),
            or_dash(native.map(|native| native.median_ns.to_string())),
            or_dash(native.map(|native| format!("{:.1}", cost.median_ns as f64 / native.median_ns.max(1) as f64))),
            format!("{:.0}", cost.fuel_mean),
            cost.fuel_most.used.to_string(),
        ]);
    }
    align_right(&mut table);
    write_table(out, &table)?;
    writeln!(out, "\n  memory: {} of {} bytes", report.memory_bytes.used, report.memory_bytes.limit)
}
