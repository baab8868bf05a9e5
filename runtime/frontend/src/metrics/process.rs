//! What Linux says about this process, by the names that Prometheus' own
//! clients have for it.

use std::fs;

use super::page::{Labels, Metrics};
use super::table::Name;

/// Clock ticks of a second in `/proc`; the same on every Linux machine that
/// this is built for.
const TICKS_PER_S: f64 = 100.0;
const PAGE_BYTES: i64 = 4096;

/// What a scrape tells of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Usage {
    cpu_s: f64,
    start_s: f64,
    virtual_bytes: i64,
    resident_bytes: i64,
}

/// Reads the process' values anew. Where there is no `/proc`, they stay 0.
pub(crate) fn update(metrics: &Metrics) {
    let none = Labels::new();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let boot_s = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time_s(&text)).unwrap_or(0.0);
    if let Some(usage) = usage(&stat, boot_s) {
        let cpu = metrics.seconds(Name::ProcessCpuSeconds, &none);
        cpu.inc_by((usage.cpu_s - cpu.get()).max(0.0));
        metrics.ratio(Name::ProcessStartTimeSeconds, &none).set(usage.start_s);
        metrics.gauge(Name::ProcessVirtualMemoryBytes, &none).set(usage.virtual_bytes);
        metrics.gauge(Name::ProcessResidentMemoryBytes, &none).set(usage.resident_bytes);
    }
    let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    metrics.gauge(Name::ProcessOpenFds, &none).set(i64::try_from(open).unwrap_or(i64::MAX));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    metrics.gauge(Name::ProcessMaxFds, &none).set(max_fds(&limits).unwrap_or(0));
}

/// The fields of `/proc/self/stat`, counted behind the program's name, which may
/// itself have spaces and brackets.
fn usage(stat: &str, boot_s: f64) -> Option<Usage> {
    let (_, behind) = stat.rsplit_once(')')?;
    let fields: Vec<f64> = behind.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Usage {
        cpu_s: (field(14)? + field(15)?) / TICKS_PER_S,
        start_s: boot_s + field(22)? / TICKS_PER_S,
        virtual_bytes: field(23)? as i64,
        resident_bytes: field(24)? as i64 * PAGE_BYTES,
    })
}

fn boot_time_s(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn max_fds(limits: &str) -> Option<i64> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 500 8192 2 0";
        let usage = usage(stat, 1000.0).expect("it has all fields");
        assert_eq!(usage, Usage { cpu_s: 2.0, start_s: 1005.0, virtual_bytes: 8192, resident_bytes: 8192 });
        assert_eq!(super::usage("42 (cut) S 1", 0.0), None);
        assert_eq!(boot_time_s("cpu 1\nbtime 77\n"), Some(77.0));
        assert_eq!(max_fds("Max open files            1024                 4096                 files"), Some(1024));
    }
}
