//! Runs work on several threads. Results are in the order of the items, so the number of threads does not affect them.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub(crate) fn available() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

pub(crate) fn map<T: Sync, R: Send>(threads: NonZeroUsize, items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.get().min(items.len());
    if threads < 2 {
        return items.iter().map(each).collect();
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = each(item);
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        for threads in [1, 3, 200] {
            let threads = NonZeroUsize::new(threads).expect("it is not 0");
            assert_eq!(map(threads, &items, |item| item * 2), (0..200).step_by(2).collect::<Vec<u64>>());
        }
        assert_eq!(map(NonZeroUsize::MIN, &[] as &[u64], |item| *item), Vec::<u64>::new());
    }
}
