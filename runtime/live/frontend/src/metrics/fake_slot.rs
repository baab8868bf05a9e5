//! Fake metrics that can change while a server runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use super::fake::FakePage;
use super::page::MetricsOptions;

/// The fake metrics that a server serves instead of the real ones, if any.
#[derive(Debug)]
pub struct FakeSlot {
    options: MetricsOptions,
    served: Mutex<Option<Served>>,
}

#[derive(Debug)]
struct Served {
    /// The values as they were set.
    values: Map<String, Value>,
    page: FakePage,
}

impl FakeSlot {
    /// Starts with the real metrics.
    #[must_use]
    pub fn new(options: MetricsOptions) -> Self {
        Self { options, served: Mutex::new(None) }
    }

    /// Sets values by the names of llm-d-inference-sim. Other values stay, and so do values set to null, as in
    /// llm-d-inference-sim. Functions of time restart.
    ///
    /// # Errors
    /// The first invalid value. Then nothing changes.
    pub fn set(&self, change: Map<String, Value>) -> Result<(), String> {
        let mut served = self.served();
        let mut values = served.as_ref().map(|served| served.values.clone()).unwrap_or_default();
        values.extend(change.into_iter().filter(|(_, value)| !value.is_null()));
        if values.is_empty() {
            return Ok(());
        }
        let fake = serde_json::from_value(Value::Object(values.clone())).map_err(|error| error.to_string())?;
        let page = FakePage::new(fake, &self.options)?;
        *served = Some(Served { values, page });
        Ok(())
    }

    /// The current fake values, as they were set.
    #[must_use]
    pub fn values(&self) -> Map<String, Value> {
        self.served().as_ref().map(|served| served.values.clone()).unwrap_or_default()
    }

    /// Returns to the real metrics.
    pub fn clear(&self) {
        *self.served() = None;
    }

    /// The exposition of the fake metrics, if there are any.
    pub(crate) fn exposition(&self) -> Option<String> {
        self.served().as_ref().map(|served| served.page.exposition())
    }

    fn served(&self) -> MutexGuard<'_, Option<Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(slot: &FakeSlot, change: Value) -> Result<(), String> {
        slot.set(serde_json::from_value(change).expect("an object"))
    }

    #[test]
    fn values_are_set_one_by_one_and_taken_away_together() {
        let slot = FakeSlot::new(MetricsOptions {
            model_name: "m".to_owned(),
            engines: vec![0],
            max_model_len_tokens: 100,
            ..MetricsOptions::default()
        });
        let line = |name: &str| {
            let text = slot.exposition()?;
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("vllm:{name}{{")).map(str::to_owned));
            line.and_then(|line| line.rsplit(' ').next().map(str::to_owned))
        };
        set(&slot, json!({"running-requests": null})).expect("nothing");
        assert_eq!(slot.exposition(), None);
        set(&slot, json!({"running-requests": 10, "waiting-requests": 2})).expect("numbers");
        set(&slot, json!({"waiting-requests": 3, "running-requests": null})).expect("a number");
        assert_eq!(slot.values(), *json!({"running-requests": 10, "waiting-requests": 3}).as_object().expect("one"));
        let lines = || ["num_requests_running", "num_requests_waiting"].map(line);
        assert_eq!(lines(), [Some("10".to_owned()), Some("3".to_owned())]);
        for wrong in [json!({"running": 1}), json!({"running-requests": "fast"}), json!({"loras": 1})] {
            set(&slot, wrong.clone()).expect_err(&wrong.to_string());
        }
        assert_eq!(lines(), [Some("10".to_owned()), Some("3".to_owned())], "nothing has changed");
        slot.clear();
        assert_eq!((slot.exposition(), slot.values().len()), (None, 0));
    }
}
