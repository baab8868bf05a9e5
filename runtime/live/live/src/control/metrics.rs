//! Metrics of engines in OpenMetrics' text format, which Prometheus reads.

use std::fmt;

use crate::{CountUnit, Counters, EngineState, EnginesHandle, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use crate::control::{GuestReader, GuestSample, GuestValue};

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// No counter has an exemplar.
const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;

/// The registry of all metrics of `engines`, which are collected for each scrape.
pub(crate) fn registry(engines: EnginesHandle, guests: Option<GuestReader>) -> Registry {
    let mut registry = Registry::with_prefix("vcr");
    registry.register_collector(Box::new(EngineCollector(engines)));
    if let Some(guests) = guests {
        registry.register_collector(Box::new(GuestCollector(guests)));
    }
    registry
}

pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

pub(crate) fn exposition(registry: &Registry) -> String {
    let mut out = String::new();
    text::encode(&mut out, registry).expect("a String takes all that is written to it");
    out
}

struct EngineCollector(EnginesHandle);

impl fmt::Debug for EngineCollector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("EngineCollector")
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshots = self.0.snapshots();
        let mut page = Page { encoder: &mut encoder, snapshots: &snapshots };
        page.information()?;
        page.gauges()?;
        page.counters()?;
        page.finished()?;
        page.kv_transfers()
    }
}

struct GuestCollector(GuestReader);

impl fmt::Debug for GuestCollector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("GuestCollector")
    }
}

impl Collector for GuestCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = (self.0)();
        let whole = |sample: &GuestSample| match &sample.value {
            GuestValue::Counter(name, total) => Some((Some(name.clone()), *total)),
            _ => None,
        };
        guest_counter(&mut encoder, "guest_metric", "A counter that a guest reports.", &samples, whole)?;
        let mut metric =
            encoder.encode_descriptor("guest_gauge", "A gauge that a guest reports.", None, MetricType::Gauge)?;
        for sample in &samples {
            if let GuestValue::Gauge(name, value) = &sample.value {
                metric.encode_family(&guest_labels(sample, Some(name.clone())))?.encode_gauge(value)?;
            }
        }
        let help = "Notes of a guest that were dropped, because they are invalid or over a limit.";
        let dropped = |sample: &GuestSample| match sample.value {
            GuestValue::Dropped(total) => Some((None, total)),
            _ => None,
        };
        guest_counter(&mut encoder, "guest_notes_dropped", help, &samples, dropped)?;
        let help = "Failures of a guest after which its fallback went on.";
        let failures = |sample: &GuestSample| match sample.value {
            GuestValue::Failures(total) => Some((None, total)),
            _ => None,
        };
        guest_counter(&mut encoder, "guest_failures", help, &samples, failures)
    }
}

/// Writes a counter with the samples for which `value` returns a total.
fn guest_counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: &[GuestSample],
    value: impl Fn(&GuestSample) -> Option<(Option<String>, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for sample in samples {
        if let Some((name, total)) = value(sample) {
            metric.encode_family(&guest_labels(sample, name))?.encode_counter(&total, NO_EXEMPLAR)?;
        }
    }
    Ok(())
}

fn guest_labels(sample: &GuestSample, name: Option<String>) -> Vec<(&'static str, String)> {
    let engine = sample.engine.map_or_else(|| "all".to_owned(), |engine| engine.to_string());
    let mut labels = vec![("guest", sample.guest.clone()), ("engine", engine)];
    labels.extend(name.map(|name| ("name", name)));
    labels
}

/// The output of one scrape.
struct Page<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    snapshots: &'a [Snapshot],
}

/// A counter of the transfers with each peer.
struct PeerTotal {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    amount: fn(&crate::PeerTotals) -> u64,
}

const PEER_TOTALS: [PeerTotal; 6] = [
    PeerTotal {
        name: "kv_transfers",
        help: "Complete KV transfers that the engine started.",
        unit: None,
        amount: |peer| peer.transfers,
    },
    PeerTotal {
        name: "kv_transfer_received",
        help: "Bytes of KV pages that came from the peer.",
        unit: Some(Unit::Bytes),
        amount: |peer| peer.received_bytes,
    },
    PeerTotal {
        name: "kv_transfer_sent",
        help: "Bytes of KV pages that went to the peer.",
        unit: Some(Unit::Bytes),
        amount: |peer| peer.sent_bytes,
    },
    PeerTotal {
        name: "kv_transfer_pages_received",
        help: "KV pages, or parts of pages, that came from the peer.",
        unit: None,
        amount: |peer| peer.received_pages,
    },
    PeerTotal {
        name: "kv_transfer_pages_sent",
        help: "KV pages, or parts of pages, that went to the peer.",
        unit: None,
        amount: |peer| peer.sent_pages,
    },
    PeerTotal {
        name: "kv_transfer_notices_sent",
        help: "Notices that went to the peer.",
        unit: None,
        amount: |peer| peer.notices,
    },
];

fn engine(snapshot: &Snapshot) -> (&'static str, String) {
    ("engine", snapshot.rank.to_string())
}

impl Page<'_, '_> {
    /// KV transfers by peer: bytes, pages and times.
    fn kv_transfers(&mut self) -> fmt::Result {
        let snapshots = self.snapshots;
        let peers = || {
            snapshots.iter().flat_map(|snapshot| {
                let of_plane = snapshot
                    .plane
                    .iter()
                    .flat_map(|plane| plane.totals.peers().map(move |(name, totals)| (plane.name, name, totals)));
                of_plane.map(move |(plane, name, totals)| {
                    let labels = vec![engine(snapshot), ("plane", plane.to_owned()), ("peer", name.to_owned())];
                    (labels, totals)
                })
            })
        };
        for total in &PEER_TOTALS {
            let kind = MetricType::Counter;
            let mut metric = self.encoder.encode_descriptor(total.name, total.help, total.unit.as_ref(), kind)?;
            for (labels, totals) in peers() {
                metric.encode_family(&labels)?.encode_counter(&(total.amount)(totals), NO_EXEMPLAR)?;
            }
        }
        let help = "Time of complete KV transfers: in the queue for a connection, on a new connection, and moving.";
        let unit = Some(&Unit::Seconds);
        let mut metric = self.encoder.encode_descriptor("kv_transfer_time", help, unit, MetricType::Counter)?;
        for (labels, totals) in peers() {
            let phases = [("queue", totals.queue_ns), ("connect", totals.connect_ns), ("move", totals.move_ns)];
            for (phase, ns) in phases {
                let labels = [&labels[..], &[("phase", phase.to_owned())]].concat();
                metric.encode_family(&labels)?.encode_counter(&seconds(ns), NO_EXEMPLAR)?;
            }
        }
        let help = "KV transfers that failed, by kind.";
        let mut metric = self.encoder.encode_descriptor("kv_transfer_failures", help, None, MetricType::Counter)?;
        for (labels, totals) in peers() {
            for (kind, count) in &totals.failures {
                let labels = [&labels[..], &[("kind", kind.name().to_owned())]].concat();
                metric.encode_family(&labels)?.encode_counter(count, NO_EXEMPLAR)?;
            }
        }
        Ok(())
    }

    fn information(&mut self) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor("build", "The program.", None, MetricType::Info)?;
        metric.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;

        let help = "An engine: the vLLM version of its frontend, once it is known, and its latency model.";
        let mut metric = self.encoder.encode_descriptor("engine", help, None, MetricType::Info)?;
        for snapshot in self.snapshots {
            let version = snapshot.version.map_or("", |version| version.name()).to_owned();
            metric.encode_info(&[engine(snapshot), ("vllm_minor", version), ("latency", snapshot.latency.clone())])?;
        }

        // A gauge for each state, since this library has no state sets.
        let help = "1 in the state that the engine is in, 0 in all others.";
        let mut metric = self.encoder.encode_descriptor("engine_state", help, None, MetricType::Gauge)?;
        for snapshot in self.snapshots {
            for state in EngineState::ALL {
                let labels = [engine(snapshot), ("state", state.name().to_owned())];
                metric.encode_family(&labels)?.encode_gauge(&u32::from(snapshot.state == state))?;
            }
        }
        Ok(())
    }

    fn gauges(&mut self) -> fmt::Result {
        self.gauge("requests_running", "Requests that compute or generate.", None, |it| it.num_running as u64)?;
        self.gauge("requests_waiting", "Requests that wait.", None, |it| it.num_waiting as u64)?;
        self.gauge("kv_cache_usage_ratio", "Share of the KV blocks in use, 0 to 1.", None, |it| it.kv_cache_usage)?;
        self.gauge("kv_cache_blocks", "KV blocks, the null block included.", None, |it| it.num_gpu_blocks)?;
        let help = "Finished prompts whose KV blocks are held for a decode engine.";
        self.gauge("prompts_held", help, None, |it| it.num_held_prompts as u64)?;
        self.gauge("paused", "1 if nothing is scheduled on purpose.", None, |it| u32::from(it.is_paused))?;
        self.gauge("sleeping", "1 if the engine sleeps.", None, |it| u32::from(it.is_sleeping))?;
        self.gauge("time_scale_ratio", "What durations are divided by.", None, |it| it.time_scale)?;
        self.gauge("faults_in_force", "Faults that may happen.", None, |it| it.num_faults_in_force as u64)?;
        let help = "How long after its end the latest step was applied, in seconds.";
        self.gauge("step_lateness_max", help, Some(Unit::Seconds), |it| seconds(it.counters.max_late_ns))
    }

    fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        value: impl Fn(&Snapshot) -> V,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for snapshot in self.snapshots {
            metric.encode_family(&[engine(snapshot)])?.encode_gauge(&value(snapshot))?;
        }
        Ok(())
    }

    fn counters(&mut self) -> fmt::Result {
        for count in Counters::COUNTS {
            let unit = match count.unit {
                CountUnit::None => None,
                CountUnit::Seconds => Some(Unit::Seconds),
                CountUnit::Bytes => Some(Unit::Bytes),
            };
            let kind = MetricType::Counter;
            let mut metric = self.encoder.encode_descriptor(count.name, count.help, unit.as_ref(), kind)?;
            for snapshot in self.snapshots {
                let labels = [engine(snapshot)];
                let mut sample = metric.encode_family(&labels)?;
                let amount = (count.amount)(&snapshot.counters);
                match count.unit {
                    CountUnit::Seconds => sample.encode_counter(&seconds(amount), NO_EXEMPLAR)?,
                    CountUnit::None | CountUnit::Bytes => sample.encode_counter(&amount, NO_EXEMPLAR)?,
                }
            }
        }
        Ok(())
    }

    fn finished(&mut self) -> fmt::Result {
        let help = "Requests that ended, by reason.";
        let mut metric = self.encoder.encode_descriptor("requests_finished", help, None, MetricType::Counter)?;
        for snapshot in self.snapshots {
            for (reason, amount) in snapshot.counters.finished_by_reason() {
                let labels = [engine(snapshot), ("reason", reason.to_owned())];
                metric.encode_family(&labels)?.encode_counter(&amount, NO_EXEMPLAR)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn guests_are_distinguished_by_name_engine_and_metric() {
        let sample = |engine, value| GuestSample { guest: "thermal".to_owned(), engine: Some(engine), value };
        let reader: GuestReader = Arc::new(move || {
            vec![
                sample(0, GuestValue::Counter("throttled_steps".to_owned(), 7)),
                sample(0, GuestValue::Gauge("temperature_celsius".to_owned(), 71.5)),
                sample(0, GuestValue::Dropped(2)),
                sample(1, GuestValue::Failures(1)),
                GuestSample { engine: None, ..sample(0, GuestValue::Counter("routed".to_owned(), 3)) },
            ]
        });
        let mut registry = Registry::with_prefix("vcr");
        registry.register_collector(Box::new(GuestCollector(reader)));
        let text = exposition(&registry);
        for line in [
            r#"vcr_guest_metric_total{guest="thermal",engine="0",name="throttled_steps"} 7"#,
            r#"vcr_guest_gauge{guest="thermal",engine="0",name="temperature_celsius"} 71.5"#,
            r#"vcr_guest_notes_dropped_total{guest="thermal",engine="0"} 2"#,
            r#"vcr_guest_failures_total{guest="thermal",engine="1"} 1"#,
            r#"vcr_guest_metric_total{guest="thermal",engine="all",name="routed"} 3"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in:\n{text}");
        }
    }
}
