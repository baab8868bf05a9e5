use alloc::alloc::{Layout, alloc, realloc};

/// Allocates the lists in a call's arguments at the host's request, in guests that link std.
#[expect(unsafe_code, reason = "the canonical ABI names the function")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(place: *mut u8, old_size: usize, align: usize, size: usize) -> *mut u8 {
    if size == 0 {
        return core::ptr::without_provenance_mut(align);
    }
    let Ok(layout) = Layout::from_size_align(if old_size == 0 { size } else { old_size }, align) else {
        core::arch::wasm32::unreachable()
    };
    // SAFETY: the layout is not empty, and `place` was allocated by this function with this alignment.
    let given = unsafe { if old_size == 0 { alloc(layout) } else { realloc(place, layout, size) } };
    if given.is_null() { core::arch::wasm32::unreachable() } else { given }
}
