//! Scrapes a server's metrics before, during and after a run.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::metrics::Scrape;
use super::pool::Pool;
use super::server::get;

const INTERVAL: Duration = Duration::from_millis(500);
/// Servers update their metrics shortly after they send an answer.
const AFTER_LAST_ANSWER: Duration = Duration::from_millis(200);

/// Scrapes metrics until it is dropped.
pub(crate) struct Scraper {
    pool: Rc<Pool>,
    before: Option<Scrape>,
    peak: Rc<Cell<f64>>,
    task: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Scraped {
    pub(crate) preemptions: Option<u64>,
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) kv_peak_usage: Option<f64>,
}

impl Scraper {
    /// Scrapes for the first time. A server without metrics is not scraped again.
    pub(crate) async fn begin(pool: &Rc<Pool>) -> Self {
        let before = scrape(pool).await.filter(|scrape| *scrape != Scrape::default());
        let peak = Rc::new(Cell::new(before.as_ref().and_then(Scrape::kv_usage).unwrap_or(0.0)));
        let task = before.as_ref().map(|_| {
            let (pool, peak) = (Rc::clone(pool), Rc::clone(&peak));
            tokio::task::spawn_local(async move {
                loop {
                    tokio::time::sleep(INTERVAL).await;
                    let usage = scrape(&pool).await.and_then(|scrape| scrape.kv_usage());
                    peak.set(peak.get().max(usage.unwrap_or(0.0)));
                }
            })
        });
        Self { pool: Rc::clone(pool), before, peak, task }
    }

    /// Scrapes for the last time.
    pub(crate) async fn end(mut self) -> Scraped {
        let Some(before) = self.before.take() else { return Scraped::default() };
        tokio::time::sleep(AFTER_LAST_ANSWER).await;
        let Some(after) = scrape(&self.pool).await else { return Scraped::default() };
        let peak = after.kv_usage().map(|usage| usage.max(self.peak.get()));
        Scraped {
            preemptions: after.since(&before, "vllm:num_preemptions"),
            cached_tokens: after.since(&before, "vllm:prefix_cache_hits"),
            kv_peak_usage: peak,
        }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn scrape(pool: &Pool) -> Option<Scrape> {
    let bytes = get(pool, "/metrics").await.ok()?;
    Some(Scrape::read(&String::from_utf8_lossy(&bytes)))
}
