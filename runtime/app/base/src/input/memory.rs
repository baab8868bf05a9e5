//! The limit of the process's resident memory.
//!
//! [`set_limit`] sets the limit. The default is the resident memory at the first request, plus
//! [`DEFAULT_SHARE_PERCENT`] of the memory then available to the machine and the process's cgroups. Input readers and
//! simulations call [`check`] regularly, so that exceeding the limit is an error with a text instead of an OOM kill.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use crate::units::format_bytes;

/// Default limit, in percent of the available memory.
pub const DEFAULT_SHARE_PERCENT: u64 = 80;

/// A smaller process is not checked, because querying the available memory took a tenth of a run of three requests.
const SMALL_BYTES: u64 = 32 << 20;

/// Key of the page size in the auxiliary vector (`AT_PAGESZ`).
const AT_PAGE_SIZE: usize = 6;

/// The limit set by the user; 0 if none.
static GIVEN_BYTES: AtomicU64 = AtomicU64::new(0);

/// The process exceeds its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the process takes {} of memory, and its limit is {}",
    format_bytes(*resident_bytes as f64),
    format_bytes(*limit_bytes as f64)
)]
pub struct MemoryExceeded {
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
    /// The limit, in bytes.
    pub limit_bytes: u64,
}

impl From<MemoryExceeded> for io::Error {
    fn from(error: MemoryExceeded) -> Self {
        Self::new(io::ErrorKind::OutOfMemory, error)
    }
}

/// Sets the limit, instead of the default.
pub fn set_limit(bytes: u64) {
    GIVEN_BYTES.store(bytes.max(1), Ordering::Relaxed);
}

/// The limit in bytes; none if the system does not report available memory.
#[must_use]
pub fn limit() -> Option<u64> {
    static DEFAULT: OnceLock<Option<u64>> = OnceLock::new();
    match GIVEN_BYTES.load(Ordering::Relaxed) {
        0 => *DEFAULT.get_or_init(|| {
            let share = u128::from(available_bytes()?) * u128::from(DEFAULT_SHARE_PERCENT) / 100;
            Some(resident_bytes()?.saturating_add(share as u64))
        }),
        given => Some(given),
    }
}

/// The limit for a process of `bytes`; none if the process is too small to be checked.
#[must_use]
pub fn limit_for(bytes: u64) -> Option<u64> {
    let is_given = GIVEN_BYTES.load(Ordering::Relaxed) != 0;
    if is_given || bytes >= SMALL_BYTES { limit() } else { None }
}

/// Checks that the process is within its limit. Takes about a microsecond.
///
/// # Errors
/// When the process exceeds the limit.
pub fn check() -> Result<(), MemoryExceeded> {
    let Some(resident_bytes) = resident_bytes() else { return Ok(()) };
    match limit_for(resident_bytes) {
        Some(limit_bytes) if resident_bytes > limit_bytes => Err(MemoryExceeded { resident_bytes, limit_bytes }),
        _ => Ok(()),
    }
}

/// Resident memory of the process without file-backed pages.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    static STATM: OnceLock<Option<File>> = OnceLock::new();
    static PAGE_BYTES: OnceLock<Option<u64>> = OnceLock::new();
    let page_bytes = (*PAGE_BYTES.get_or_init(page_bytes))?;
    let statm = STATM.get_or_init(|| File::open("/proc/self/statm").ok()).as_ref()?;
    let mut buffer = [0; 128];
    let len = statm.read_at(&mut buffer, 0).ok()?;
    let text = std::str::from_utf8(&buffer[..len]).ok()?;
    // Page counts: size, resident, shared with files, ...
    let mut pages = text.split_ascii_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * page_bytes)
}

/// Peak resident memory of the process, including file-backed pages.
#[must_use]
pub fn peak_bytes() -> Option<u64> {
    let status = BufReader::new(File::open("/proc/self/status").ok()?);
    let line = status.lines().map_while(Result::ok).find(|line| line.starts_with("VmHWM:"))?;
    let size_kb = line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(size_kb * 1024)
}

/// Page size from the process's auxiliary vector, which has pairs of a key and a value. Reading the file needs no
/// unsafe code, and rustix's reader crashes under valgrind.
fn page_bytes() -> Option<u64> {
    let vector = fs::read("/proc/self/auxv").ok()?;
    let mut words =
        vector.chunks_exact(size_of::<usize>()).filter_map(|word| word.try_into().ok().map(usize::from_ne_bytes));
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if key == AT_PAGE_SIZE {
            return Some(value as u64);
        }
    }
    None
}

/// Memory available without swapping: the minimum over the machine and the process's cgroups.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(group_folders(&groups).iter().filter_map(|folder| group_available(folder)).fold(machine, u64::min))
}

/// Folders of the process's cgroups and their ancestors, which may limit its memory; from `/proc/self/cgroup`.
fn group_folders(groups: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|name| name == "memory") => "/sys/fs/cgroup/memory",
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        folders.extend(group.ancestors().map(|group| Path::new(root).join(group)));
    }
    folders
}

/// Bytes left below the limit of a cgroup, if it has a limit.
fn group_available(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // cgroup v2, then v1. `max` means no limit.
    let (limit, used) = number("memory.max")
        .and_then(|limit| Some((limit, number("memory.current")?)))
        .or_else(|| Some((number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?)))?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    // The kernel frees the inactive page cache when memory is needed.
    let cache = stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        matches!(name, "inactive_file" | "total_inactive_file").then(|| value.trim().parse::<u64>().ok()).flatten()
    });
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_size_of_the_kernel() {
        let bytes = page_bytes().expect("the kernel says it");
        assert!(bytes >= 4096 && bytes.is_power_of_two(), "{bytes}");
    }

    #[test]
    fn little_memory_is_measured_against_a_given_limit_alone() {
        // No limit is set here, because all tests of the process share it.
        assert_eq!((limit_for(SMALL_BYTES - 1), limit_for(SMALL_BYTES)), (None, limit()));
    }

    #[test]
    fn what_is_allocated_shows() {
        let before = resident_bytes().expect("Linux says it");
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_bytes().expect("Linux says it");
        // The kernel counts per CPU and updates the sum only occasionally.
        assert!(after > before + (48 << 20), "{before} -> {after} with {} bytes", block.len());
        assert!(available_bytes().expect("Linux says it") > 0);
        drop(block);
        assert!(peak_bytes().expect("Linux says it") > 64 << 20, "the peak stays");
    }

    #[test]
    fn groups_are_looked_for_up_to_the_root() {
        let v2 = group_folders("0::/kubepods/pod1/c1\n");
        let expected = ["/sys/fs/cgroup/kubepods/pod1/c1", "/sys/fs/cgroup/kubepods/pod1", "/sys/fs/cgroup/kubepods"];
        assert_eq!(v2[..3], expected.map(PathBuf::from));
        assert_eq!(v2[3], Path::new("/sys/fs/cgroup/"));
        let v1 = group_folders("5:cpu,cpuacct:/a\n4:memory:/a\n");
        assert_eq!(v1[0], Path::new("/sys/fs/cgroup/memory/a"));
        assert_eq!(v1.len(), 2);
    }

    #[test]
    fn the_page_cache_of_a_group_is_available() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it is writable");
        assert_eq!(group_available(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(group_available(folder.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(group_available(folder.path()), Some(300));
        write("memory.stat", "anon 400\ninactive_file 250\n");
        assert_eq!(group_available(folder.path()), Some(550));
    }
}
