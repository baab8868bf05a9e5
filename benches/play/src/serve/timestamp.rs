//! Socket reads with the times at which the system received the bytes.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Room for a control message, aligned as its header requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Makes the system record the arrival times of the bytes at `socket`.
pub(crate) fn take_times(socket: &TcpStream) -> io::Result<()> {
    let is_on: libc::c_int = 1;
    #[expect(unsafe_code, reason = "no library of ours sets this option")]
    // SAFETY: the option is an integer that lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const is_on).cast(),
            size_of_val(&is_on) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads the available bytes. Also returns the arrival time of the last byte in nanoseconds since 1970, or 0 unless
/// [`take_times`] was called.
pub(crate) fn receive(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    #[expect(unsafe_code, reason = "no library of ours reads these times")]
    // SAFETY: an all-zero message is an empty one. Its buffers live until the call returns.
    let (count, control_len) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), control.0.len() as _);
        (libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0), message.msg_controllen as usize)
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok((count, time_in(&control.0[..control_len.min(64)]).unwrap_or(0)))
}

/// Time in a control message, which has its length, level and type, then seconds and nanoseconds.
fn time_in(control: &[u8]) -> Option<u64> {
    let int = |at: usize| control.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
    let long = |at: usize| control.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let is_time = int(8)? == libc::SOL_SOCKET && int(12)? == libc::SCM_TIMESTAMPNS;
    is_time.then_some(())?;
    Some(long(16)? * 1_000_000_000 + long(24)?)
}
