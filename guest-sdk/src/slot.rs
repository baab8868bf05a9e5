use alloc::string::String;
use core::cell::RefCell;

/// Holds the one guest of an instance and the state that the guest keeps between calls.
///
/// It is a static, because the interface's functions take no `self`: a handle would cost more than pricing a step.
pub struct Slot<T>(RefCell<Option<T>>);

// SAFETY: wasm32 without atomics has no threads, so nothing is shared between threads.
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
#[expect(unsafe_code, reason = "a static must be `Sync`, even where there is one thread")]
unsafe impl<T> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// An empty slot.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// Fills the slot.
    ///
    /// # Errors
    /// The error of `make`, or that the slot is full.
    pub fn configure(&self, make: impl FnOnce() -> Result<T, String>) -> Result<(), String> {
        let mut kept = self.0.borrow_mut();
        if kept.is_some() {
            return Err(String::from("the host called `configure` twice"));
        }
        *kept = Some(make()?);
        Ok(())
    }

    /// Calls `call` with the state.
    ///
    /// # Errors
    /// The error of `call`, or that the slot is empty.
    #[inline]
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> Result<R, String>) -> Result<R, String> {
        match &mut *self.0.borrow_mut() {
            Some(kept) => call(kept),
            None => Err(String::from("the host made another call before it called `configure`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_keeps_no_order_is_reported() {
        let slot = Slot::<u32>::new();
        assert!(slot.with(|kept| Ok(*kept)).expect_err("it is empty").contains("before it called `configure`"));
        assert_eq!(slot.configure(|| Err("no".into())), Err("no".into()));
        assert_eq!(slot.configure(|| Ok(7)), Ok(()), "a rejected config fills nothing");
        assert!(slot.configure(|| Ok(8)).expect_err("it is full").contains("twice"));
        assert_eq!(slot.with(|kept| Ok(*kept)), Ok(7));
    }
}
