//! The scheduler's time slice for threads that wait for a point in time.

/// The shortest slice that Linux accepts.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 100_000;

/// Requests a short time slice, so that this thread runs as soon as it is woken, such as for a due step: from 6.12
/// on, Linux interrupts threads with longer slices for it. Best effort: threads with other scheduling policies keep
/// their settings.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "neither the standard library nor rustix has these system calls")]
pub fn shorten_time_slice() {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: all fields are numbers, so zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the system writes at most `size` bytes into the structure, which lives longer than the call.
    let is_read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if is_read && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: the system only reads the structure.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Does nothing: only Linux has adjustable slices.
#[cfg(not(target_os = "linux"))]
pub fn shorten_time_slice() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    /// Everything else stays unchanged, whether or not the kernel accepts the slice.
    #[test]
    #[expect(unsafe_code, reason = "as above")]
    fn policy_and_niceness_stay() {
        let niceness = getpriority_process(None).expect("it is known");
        shorten_time_slice();
        // SAFETY: the call takes and returns numbers.
        assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER);
        assert_eq!(getpriority_process(None), Ok(niceness));
    }
}
