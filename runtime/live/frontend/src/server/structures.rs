//! Checks structured outputs before requests reach an engine. Checks run outside of the server threads, a few at a
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use vcr_wire::Value;

/// The maximum number of concurrent checks.
const AT_ONCE: usize = 2;

/// Returns an error if the engines do not support a structure. The check may stop when its second argument returns
/// true, because the client has left.
type CheckStructure = dyn Fn(&str, &dyn Fn() -> bool) -> Result<(), String> + Send + Sync;

/// Checks whether the engines support a structured output.
#[derive(Clone)]
pub struct StructureCheck(pub Arc<CheckStructure>);

impl std::fmt::Debug for StructureCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StructureCheck")
    }
}

/// Runs the checks of structured outputs.
#[derive(Debug)]
pub(crate) struct Structures {
    check: Option<StructureCheck>,
    room: Arc<Semaphore>,
}

/// Tells the check when its request is dropped.
struct Asker(Arc<AtomicBool>);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Structures {
    pub(crate) fn new(check: Option<StructureCheck>) -> Self {
        Self { check, room: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Checks a structure on a separate thread. If the request is dropped, its check does not start or stops early.
    pub(crate) async fn check(&self, structure: Arc<Value>) -> Result<(), String> {
        let Some(StructureCheck(check)) = self.check.clone() else { return Ok(()) };
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return Ok(()) };
        let asker = Asker(Arc::default());
        let is_gone = Arc::clone(&asker.0);
        let checked = spawn_blocking(move || {
            // Hold the permit until the check ends, even if its request is gone.
            let _room = room;
            let is_gone = || is_gone.load(Ordering::Relaxed);
            if is_gone() {
                return Ok(());
            }
            check(&serde_json::to_string(&*structure).unwrap_or_default(), &is_gone)
        });
        checked.await.unwrap_or_else(|error| Err(format!("the structured output cannot be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    /// A check that ends on command or when its request is gone, and reports its progress.
    fn held() -> (Structures, mpsc::Sender<()>, tokio::sync::mpsc::UnboundedReceiver<&'static str>) {
        let (release, released) = mpsc::channel();
        let (say, said) = tokio::sync::mpsc::unbounded_channel();
        let released = Mutex::new(released);
        let check: Arc<CheckStructure> = Arc::new(move |_, is_gone| {
            say.send("begun").expect("the test listens");
            loop {
                if is_gone() {
                    say.send("given up").expect("the test listens");
                    return Ok(());
                }
                if released.lock().expect("no thread has failed").try_recv().is_ok() {
                    return Err("no".to_owned());
                }
                std::thread::yield_now();
            }
        });
        (Structures::new(Some(StructureCheck(check))), release, said)
    }

    /// With one runtime thread, this test can continue only if the check does not block it.
    #[tokio::test]
    async fn others_are_served_while_a_structure_is_read() {
        let (structures, release, mut said) = held();
        let structures = Arc::new(structures);
        let of_task = Arc::clone(&structures);
        let asked = tokio::spawn(async move { of_task.check(Arc::new(Value::Nil)).await });
        assert_eq!(said.recv().await, Some("begun"));
        release.send(()).expect("it waits");
        assert_eq!(asked.await.expect("it ends"), Err("no".to_owned()));
    }

    #[tokio::test]
    async fn structures_of_requests_that_are_gone_are_given_up() {
        let (structures, _release, mut said) = held();
        let structures = Arc::new(structures);
        let ask = || {
            let structures = Arc::clone(&structures);
            tokio::spawn(async move { structures.check(Arc::new(Value::Nil)).await })
        };
        let first: Vec<_> = (0..AT_ONCE).map(|_| ask()).collect();
        for _ in &first {
            assert_eq!(said.recv().await, Some("begun"));
        }
        let waiting = ask();
        tokio::task::yield_now().await;
        assert!(said.try_recv().is_err(), "there is room for {AT_ONCE}");
        for task in first {
            task.abort();
        }
        let mut after: Vec<_> = Vec::new();
        while after.len() <= AT_ONCE {
            after.push(said.recv().await.expect("the checks go on"));
        }
        after.sort_unstable();
        assert_eq!(after, ["begun", "given up", "given up"]);
        waiting.abort();
    }
}
