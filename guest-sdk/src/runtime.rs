//! Replacements for std: an allocator and a panic handler.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, Ordering};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { arena: UnsafeCell::new(Arena::new()) };

/// Logs the message and traps. The host appends the last log line to its error.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    static IN_PANIC: AtomicBool = AtomicBool::new(false);
    // Formatting the message can itself panic.
    if !IN_PANIC.swap(true, Ordering::Relaxed) {
        let mut line = Line { bytes: [0; LINE_BYTES], length: 0 };
        // An error means that the line is full: its beginning is enough.
        let _ = match info.location() {
            Some(place) => write!(line, "panic at {place}: {}", info.message()),
            None => write!(line, "panic: {}", info.message()),
        };
        crate::observe::log(line.text());
    }
    core::arch::wasm32::unreachable()
}

const LINE_BYTES: usize = 512;

/// A line of text on the stack: the heap may be exhausted.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Line {
    fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let mut fits = text.len().min(room.len());
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// dlmalloc, preceded by an arena for the arguments of calls. The host allocates each list with a separate call, and
/// all lists are freed at the end of the call.
struct Allocator {
    arena: UnsafeCell<Arena>,
}

const ARENA_BYTES: usize = 16 << 10;

/// The bytes come first, so that they have the alignment of the arena.
#[repr(C, align(16))]
struct Arena {
    bytes: [u8; ARENA_BYTES],
    /// Number of bytes in use, from the beginning.
    used: usize,
    /// Number of allocations that are not freed. At 0 all bytes are free again.
    live: usize,
}

impl Arena {
    const fn new() -> Self {
        Self { bytes: [0; ARENA_BYTES], used: 0, live: 0 }
    }

    #[inline]
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let start = self.used.next_multiple_of(layout.align().max(8));
        let end = start.checked_add(layout.size())?;
        let place = self.bytes.get_mut(start..end)?.as_mut_ptr();
        (self.used, self.live) = (end, self.live + 1);
        Some(place)
    }

    #[inline]
    fn has(&self, place: *mut u8) -> bool {
        (place as usize).wrapping_sub(self.bytes.as_ptr() as usize) < ARENA_BYTES
    }

    #[inline]
    fn free(&mut self) {
        self.live -= 1;
        if self.live == 0 {
            self.used = 0;
        }
    }
}

// SAFETY: wasm32 without atomics has no threads, so nothing is shared between threads.
#[cfg(not(target_feature = "atomics"))]
#[expect(unsafe_code, reason = "a static must be `Sync`, even where there is one thread")]
unsafe impl Sync for Allocator {}

// SAFETY: the arena returns disjoint parts of its bytes and takes only those back; dlmalloc serves everything else.
#[expect(unsafe_code, reason = "an allocator is unsafe by its nature")]
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { dlmalloc::GlobalDlmalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        let arena = unsafe { &mut *self.arena.get() };
        if arena.has(place) {
            arena.free();
        } else {
            unsafe { dlmalloc::GlobalDlmalloc.dealloc(place, layout) }
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !unsafe { &*self.arena.get() }.has(place) {
            return unsafe { dlmalloc::GlobalDlmalloc.realloc(place, layout, size) };
        }
        let Ok(larger) = Layout::from_size_align(size, layout.align()) else { return core::ptr::null_mut() };
        let moved = unsafe { self.alloc(larger) };
        if !moved.is_null() {
            unsafe {
                moved.copy_from_nonoverlapping(place, layout.size().min(size));
                self.dealloc(place, layout);
            }
        }
        moved
    }
}

/// Allocates the lists in a call's arguments at the host's request.
#[expect(unsafe_code, reason = "the canonical ABI names the function")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(place: *mut u8, old_size: usize, align: usize, size: usize) -> *mut u8 {
    if size == 0 {
        return core::ptr::without_provenance_mut(align);
    }
    let Ok(layout) = Layout::from_size_align(size.max(old_size), align) else { core::arch::wasm32::unreachable() };
    let given = if old_size == 0 {
        // SAFETY: there are no threads, and no reference into the arena is alive.
        let taken = unsafe { (*ALLOCATOR.arena.get()).take(layout) };
        taken.unwrap_or_else(|| unsafe { ALLOCATOR.alloc(layout) })
    } else {
        // The host reallocates only while it recodes text; texts in UTF-8 are not recoded.
        let old = Layout::from_size_align(old_size, align).unwrap_or(layout);
        unsafe { ALLOCATOR.realloc(place, old, size) }
    };
    if given.is_null() { core::arch::wasm32::unreachable() } else { given }
}
