//! Memory that works in progress share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A limit of the memory of all works together. One that exceeds it alone goes when there is
/// no other.
#[derive(Debug)]
pub(crate) struct Room {
    limit_bytes: usize,
    taken_bytes: Mutex<usize>,
    freed: Condvar,
}

impl Room {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, taken_bytes: Mutex::new(0), freed: Condvar::new() }
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on this thread until there is room for `bytes`, which are taken until the guard
    /// is dropped.
    pub(crate) fn wait(&self, bytes: usize) -> Held<'_> {
        let bytes = bytes.min(self.limit_bytes);
        let is_full = |taken: &mut usize| *taken + bytes > self.limit_bytes;
        let mut taken = self.freed.wait_while(self.taken(), is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += bytes;
        Held { room: self, bytes }
    }
}

/// The memory of one work.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    room: &'a Room,
    bytes: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.room.taken() -= self.bytes;
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Works go beside each other as long as they fit, and a work that is too large alone.
    #[test]
    fn works_wait_for_room() {
        let room = Room::new(10);
        let (first, second) = (room.wait(4), room.wait(6));
        std::thread::scope(|scope| {
            let (began, begins) = mpsc::channel();
            for bytes in [1, 1000] {
                let (room, began) = (&room, began.clone());
                scope.spawn(move || {
                    let held = room.wait(bytes);
                    began.send(*room.taken()).expect("it is heard");
                    drop(held);
                });
            }
            assert!(begins.try_recv().is_err(), "there is no room");
            drop((first, second));
            for _ in 0..2 {
                let taken = begins.recv().expect("it has begun");
                // The small one may begin beside the second, before that has gone.
                assert!([1, 7, 10].contains(&taken), "{taken} bytes: they were there at the same time");
            }
        });
        assert_eq!(*room.taken(), 0);
    }
}
