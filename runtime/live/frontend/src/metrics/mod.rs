//! The metrics of vLLM's frontend with its names, labels and buckets; metrics of the process; and our own.

mod buckets;
mod engine;
mod fake;
mod fake_slot;
mod format;
mod frontends;
mod http;
mod info;
mod lora;
mod media;
mod observer;
mod page;
mod process;
mod request;
mod series;
mod sglang;
mod table;

pub use buckets::{Buckets, CustomBuckets};
pub use engine::{EngineRecorder, Finished, Iteration, Phases};
pub use fake::{FakeGauge, FakeLoras, FakeMetrics, FakePage};
pub use fake_slot::FakeSlot;
pub use format::CONTENT_TYPE;
pub use http::{Held, serve};
pub(crate) use http::{HttpRecorder, count};
pub use lora::LoraRecorder;
pub use observer::EngineMetrics;
pub use page::{CacheConfig, Metrics, MetricsOptions};
pub use request::RequestRecord;
pub use table::{Kind, Metric, Name, Series, TABLE};
