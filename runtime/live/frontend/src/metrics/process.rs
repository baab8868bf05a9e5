//! Linux's statistics of this process, under the names of Prometheus' clients.

use std::fs;

/// Clock ticks per second in `/proc`. The value is the same on all supported Linux machines.
const TICKS_PER_S: f64 = 100.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) cpu_s: f64,
    pub(super) start_s: f64,
    pub(super) virtual_bytes: i64,
    pub(super) resident_bytes: i64,
    pub(super) open_fds: i64,
    pub(super) max_fds: i64,
}

/// Reads the statistics of this process. Without `/proc`, all are 0.
pub(super) fn read() -> Usage {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let boot_s = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time_s(&text)).unwrap_or(0.0);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    Usage {
        open_fds: i64::try_from(open).unwrap_or(i64::MAX),
        max_fds: max_fds(&limits).unwrap_or(0),
        ..usage(&stat, boot_s).unwrap_or_default()
    }
}

/// Parses `/proc/self/stat`. Fields are counted after the program's name, which may contain spaces and brackets.
fn usage(stat: &str, boot_s: f64) -> Option<Usage> {
    let (_, behind) = stat.rsplit_once(')')?;
    let fields: Vec<f64> = behind.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Usage {
        cpu_s: (field(14)? + field(15)?) / TICKS_PER_S,
        start_s: boot_s + field(22)? / TICKS_PER_S,
        virtual_bytes: field(23)? as i64,
        resident_bytes: field(24)? as i64 * rustix::param::page_size() as i64,
        ..Usage::default()
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
        let resident_bytes = 2 * rustix::param::page_size() as i64;
        let wanted = Usage { cpu_s: 2.0, start_s: 1005.0, virtual_bytes: 8192, resident_bytes, ..Usage::default() };
        assert_eq!(usage, wanted);
        assert_eq!(super::usage("42 (cut) S 1", 0.0), None);
        assert_eq!(boot_time_s("cpu 1\nbtime 77\n"), Some(77.0));
        assert_eq!(max_fds("Max open files            1024                 4096                 files"), Some(1024));
    }
}
