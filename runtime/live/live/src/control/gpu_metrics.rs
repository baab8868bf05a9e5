//! Metrics of GPUs as NVIDIA's dcgm-exporter serves them, for routers and autoscalers that read them. There is no GPU:
//! the values follow from the counters of the engines' steps.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::{Counters, EngineState, EnginesHandle, Snapshot};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Time for which values are kept: an exporter collects them at intervals. They cover the time since the previous
/// collection.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// Share of the power limit that an idle GPU draws, and the share that memory-bound steps add. Compute-bound steps
/// add twice as much.
const IDLE_POWER: f64 = 0.1;
const MEMORY_BOUND_POWER: f64 = 0.45;
/// Temperature of a GPU without power, in degrees Celsius, and its increase at the power limit.
const AMBIENT_C: f64 = 30.0;
const HEAT_C: f64 = 50.0;

/// The GPUs of the engines, all of one kind.
#[derive(Clone, Debug)]
pub struct GpuMetrics {
    /// Name of the GPU's model, as in `nvidia-smi`.
    pub model_name: String,
    pub memory_bytes: f64,
    /// Share of the memory that an engine reserves.
    pub memory_utilization: f64,
    /// Power limit, in watts.
    pub power_w: f64,
    /// Clocks of the multiprocessors and of the memory, in MHz.
    pub clocks_mhz: [u32; 2],
    /// Number of tokens from which a step is compute-bound: peak operations per byte of memory bandwidth.
    pub ridge_tokens: f64,
    /// GPUs per engine.
    pub per_engine: u32,
    /// Name of the host.
    pub hostname: String,
    /// Namespace and name of the pod that holds the GPUs, if there is one.
    pub pod: Option<[String; 2]>,
}

/// The activity of a GPU between two collections.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Activity {
    /// Share of the time spent in steps.
    busy: f64,
    /// Shares of the time in which the tensor cores (`tensor`) and the memory (`dram`) are active.
    tensor: f64,
    dram: f64,
    power_w: f64,
}

impl GpuMetrics {
    /// Activity of an engine's GPUs over `elapsed`, while its counters rose from `before` to `now`.
    fn activity(&self, before: &Counters, now: &Counters, elapsed: Duration) -> Activity {
        let rise = |count: fn(&Counters) -> u64| count(now).saturating_sub(count(before)) as f64;
        let busy = (rise(|it| it.busy_ns) / 1e9 / elapsed.as_secs_f64().max(1e-9)).min(1.0);
        let computed = rise(|it| it.generation_tokens) + rise(|it| it.prompt_tokens) - rise(|it| it.prefix_hits);
        let tokens = computed.max(1.0) / rise(|it| it.steps).max(1.0);
        // A step reads the weights once and multiplies them by each token.
        let (tensor, dram) = ((tokens / self.ridge_tokens).min(1.0), (self.ridge_tokens / tokens).min(1.0));
        let (tensor, dram) = (busy * tensor, busy * dram);
        let power_w = self.power_w * (IDLE_POWER + MEMORY_BOUND_POWER * (busy + tensor));
        Activity { busy, tensor, dram, power_w }
    }
}

/// One engine at the latest collection.
#[derive(Clone, Copy, Debug)]
struct Collected {
    counters: Counters,
    activity: Activity,
    energy_mj: f64,
}

#[derive(Debug)]
struct Collection {
    at: Instant,
    engines: Vec<Collected>,
}

/// The exporter, with the state of its latest collection.
#[derive(Debug)]
pub(crate) struct Exporter {
    gpus: GpuMetrics,
    latest: Mutex<Collection>,
}

impl Exporter {
    pub(crate) fn new(gpus: GpuMetrics) -> Self {
        Self { gpus, latest: Mutex::new(Collection { at: Instant::now(), engines: Vec::new() }) }
    }

    pub(crate) fn exposition(&self, engines: &EnginesHandle) -> String {
        self.at(Instant::now(), &engines.snapshots())
    }

    fn at(&self, now: Instant, snapshots: &[Snapshot]) -> String {
        // A panic leaves no partial change, because the collection is replaced as a whole.
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(latest.at);
        if latest.engines.len() != snapshots.len() || elapsed >= COLLECT_INTERVAL {
            let before = std::mem::take(&mut latest.engines);
            let collect = |(index, snapshot): (usize, &Snapshot)| {
                let before = before.get(index);
                let counters = before.map_or_else(Counters::default, |before| before.counters);
                let activity = self.gpus.activity(&counters, &snapshot.counters, elapsed);
                let energy_mj = activity.power_w * elapsed.as_secs_f64() * 1e3;
                let energy_mj = energy_mj + before.map_or(0.0, |before| before.energy_mj);
                Collected { counters: snapshot.counters, activity, energy_mj }
            };
            *latest = Collection { at: now, engines: snapshots.iter().enumerate().map(collect).collect() };
        }
        self.text(snapshots, &latest.engines)
    }

    fn text(&self, snapshots: &[Snapshot], engines: &[Collected]) -> String {
        let mut out = String::new();
        for field in FIELDS {
            // Writing to a string cannot fail.
            _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", field.name, field.help, field.name, field.kind);
            for (engine, (snapshot, collected)) in snapshots.iter().zip(engines).enumerate() {
                let value = (field.value)(&Seen { gpus: &self.gpus, snapshot, collected });
                for place in 0..self.gpus.per_engine {
                    let gpu = engine as u32 * self.gpus.per_engine + place;
                    _ = writeln!(out, "{}{{{}}} {value}", field.name, self.labels(gpu, snapshot.rank, place));
                }
            }
        }
        out
    }

    fn labels(&self, gpu: u32, rank: u16, place: u32) -> String {
        let GpuMetrics { model_name, hostname, pod, .. } = &self.gpus;
        let digest = Sha256::digest(format!("{hostname}-{rank}-{place}"));
        let id: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = format!("GPU-{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
        let mut labels = format!(
            "gpu=\"{gpu}\",UUID=\"{uuid}\",pci_bus_id=\"{:08X}:{:02X}:00.0\",device=\"nvidia{gpu}\",\
             modelName=\"{}\",Hostname=\"{}\",DCGM_FI_DRIVER_VERSION=\"vcr {}\"",
            gpu >> 8,
            gpu & 0xff,
            escaped(model_name),
            escaped(hostname),
            env!("CARGO_PKG_VERSION"),
        );
        if let Some([namespace, pod]) = pod {
            _ = write!(labels, ",namespace=\"{}\",pod=\"{}\"", escaped(namespace), escaped(pod));
        }
        labels
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Seen<'a> {
    gpus: &'a GpuMetrics,
    snapshot: &'a Snapshot,
    collected: &'a Collected,
}

impl Seen<'_> {
    /// Memory in use, in MiB: the engine's reservation while it is running and awake.
    fn used_mib(&self) -> f64 {
        let is_up = !matches!(self.snapshot.state, EngineState::Crashed | EngineState::Stopped);
        let share = if is_up && !self.snapshot.is_sleeping { self.gpus.memory_utilization } else { 0.0 };
        (self.memory_mib() * share).round()
    }

    fn memory_mib(&self) -> f64 {
        (self.gpus.memory_bytes / f64::from(1 << 20)).round()
    }

    fn temperature_c(&self) -> f64 {
        (AMBIENT_C + HEAT_C * self.collected.activity.power_w / self.gpus.power_w).round()
    }
}

/// A field of dcgm-exporter's default counters.
struct Field {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Seen<'_>) -> f64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Seen<'_>) -> f64) -> Field {
    Field { name, kind: "gauge", help, value }
}

/// Names, types and help texts are those of dcgm-exporter.
const FIELDS: &[Field] = &[
    gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", |it| f64::from(it.gpus.clocks_mhz[0])),
    gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", |it| f64::from(it.gpus.clocks_mhz[1])),
    gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", |it| it.temperature_c()),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", |it| milli(it.collected.activity.power_w)),
    Field {
        name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        kind: "counter",
        help: "Total energy consumption since boot (in mJ).",
        value: |it| it.collected.energy_mj.round(),
    },
    gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", |it| (it.collected.activity.busy * 100.0).round()),
    gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", |it| (it.collected.activity.dram * 100.0).round()),
    gauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", |_| 0.0),
    gauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", |_| 0.0),
    gauge("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", |_| 0.0),
    gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", |it| it.memory_mib() - it.used_mib()),
    gauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", |it| it.used_mib()),
    gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", |it| {
        micro(it.collected.activity.busy)
    }),
    gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", |it| {
        micro(it.collected.activity.tensor)
    }),
    gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        |it| micro(it.collected.activity.dram),
    ),
];

fn milli(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn micro(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> GpuMetrics {
        GpuMetrics {
            model_name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80e9,
            memory_utilization: 0.9,
            power_w: 700.0,
            clocks_mhz: [1980, 2619],
            ridge_tokens: 300.0,
            per_engine: 2,
            hostname: "node".to_owned(),
            pod: Some(["prod".to_owned(), "vllm-0".to_owned()]),
        }
    }

    fn value(text: &str, field: &str, gpu: u32) -> f64 {
        let start = format!("{field}{{gpu=\"{gpu}\",");
        let line = text.lines().find(|line| line.starts_with(&start)).expect("the field is there");
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }

    fn after(steps: u64, tokens: u64, busy_ns: u64) -> Counters {
        Counters { steps, generation_tokens: tokens, busy_ns, ..Counters::default() }
    }

    #[test]
    fn activity_follows_from_the_steps_between_two_collections() {
        let exporter = Exporter::new(gpus());
        let start = exporter.latest.lock().expect("not poisoned").at;
        let at = |seconds: f64, counters: Counters| {
            exporter.at(start + Duration::from_secs_f64(seconds), &[Snapshot { counters, ..Snapshot::default() }])
        };
        // Of 2 s, 1 s is spent in steps of 30 tokens, a tenth of `ridge_tokens`.
        let text = at(2.0, after(100, 3_000, 1_000_000_000));
        for (field, wanted) in [
            ("DCGM_FI_DEV_GPU_UTIL", 50.0),
            ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5),
            ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.05),
            ("DCGM_FI_PROF_DRAM_ACTIVE", 0.5),
            ("DCGM_FI_DEV_POWER_USAGE", 700.0 * (0.1 + 0.45 * 0.55)),
            ("DCGM_FI_DEV_FB_USED", (80e9_f64 / 1048576.0).round() * 0.9),
            ("DCGM_FI_DEV_SM_CLOCK", 1980.0),
        ] {
            assert!((value(&text, field, 1) - wanted).abs() < 0.51, "{field}: {}", value(&text, field, 1));
        }
        // Within the interval the metrics stay as they were, whatever has happened since.
        assert_eq!(at(2.5, after(200, 6_000, 2_000_000_000)), text);
        // Compute-bound steps without a pause draw full power.
        let text = at(4.0, after(110, 3_000 + 10 * 3_000, 3_500_000_000));
        assert_eq!(value(&text, "DCGM_FI_DEV_POWER_USAGE", 0), 700.0);
        assert_eq!(value(&text, "DCGM_FI_PROF_DRAM_ACTIVE", 0), 0.1);
        let idle = at(6.0, after(110, 33_000, 3_500_000_000));
        assert_eq!(value(&idle, "DCGM_FI_DEV_POWER_USAGE", 0), 70.0);
        let risen = |text| value(text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0);
        assert_eq!(risen(&idle) - risen(&text), 140_000.0);
    }

    #[test]
    fn labels_are_those_of_the_exporter() {
        let text = Exporter::new(gpus()).at(Instant::now(), &[Snapshot::default(), Snapshot::default()]);
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).collect();
        assert_eq!(lines.len(), 4, "two engines of two GPUs");
        for part in [
            "{gpu=\"3\",UUID=\"GPU-",
            "pci_bus_id=\"00000000:03:00.0\",device=\"nvidia3\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"node\"",
            "namespace=\"prod\",pod=\"vllm-0\"} 35",
        ] {
            assert!(lines[3].contains(part), "{part} is not in {}", lines[3]);
        }
        assert!(text.contains(
            "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n# TYPE DCGM_FI_DEV_FB_USED gauge\n"
        ));
    }
}
