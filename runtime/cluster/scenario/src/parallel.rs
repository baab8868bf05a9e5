//! Executes independent work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::script::stack::{start, with_large_stack};

/// Calls `work` for each of `items` on up to `threads` threads. Results are in the order of the items, so they do
/// not depend on the number of threads.
pub fn parallel<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return };
            let result = work(index, item);
            *done[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    };
    // Starting a large stack for each script would take longer than a short run, so threads are reused.
    match threads.min(items.len()) {
        0 | 1 => with_large_stack(worker),
        threads => std::thread::scope(|scope| {
            for _ in 0..threads {
                if start(scope, &worker).is_none() {
                    worker();
                }
            }
        }),
    }
    let results = done.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
    results.map(|result| result.expect("every item was taken by a thread that ended")).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..50).collect();
        for threads in [0, 1, 3, 100] {
            let results = parallel(threads, &items, |index, item| (index, item * 2));
            assert!(results.iter().enumerate().all(|(at, &(index, twice))| at == index && twice == at * 2));
        }
        assert!(parallel(2, &[], |_, item: &u8| *item).is_empty());
    }
}
