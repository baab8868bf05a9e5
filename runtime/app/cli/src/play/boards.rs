//! Properties of GPUs that NVIDIA's tools show and [`vcr_roofline::gpus`] lacks: names, power and clocks.

use std::fs;

use vcr_live::control::GpuMetrics;
use vcr_model::vllm_args::{Deployment, VllmArgs};
use vcr_roofline::gpus::{GPUS, Gpu};

use super::args::LiveArgs;
use super::unusable::Unusable;

/// GPU in the table, name in `nvidia-smi`, default power limit in watts, and maximum clocks of multiprocessors and
/// memory in MHz. Power is from the datasheet that the table names as `source`. Clocks are from
/// `nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem`.
const BOARDS: &[(&str, &str, f64, [u32; 2])] = &[
    ("a10", "NVIDIA A10", 150.0, [1695, 6251]),
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 400.0, [1410, 1215]),
    ("a100-80gb", "NVIDIA A100-SXM4-80GB", 400.0, [1410, 1593]),
    ("a100-pcie-80gb", "NVIDIA A100 80GB PCIe", 300.0, [1410, 1512]),
    ("a30", "NVIDIA A30", 165.0, [1440, 1215]),
    ("a40", "NVIDIA A40", 300.0, [1740, 7251]),
    ("b200", "NVIDIA B200", 1000.0, [1965, 3996]),
    ("h100-nvl", "NVIDIA H100 NVL", 400.0, [1785, 2619]),
    ("h100-pcie", "NVIDIA H100 PCIe", 350.0, [1755, 1593]),
    ("h100-sxm", "NVIDIA H100 80GB HBM3", 700.0, [1980, 2619]),
    ("h20", "NVIDIA H20", 500.0, [1980, 2619]),
    ("h200-nvl", "NVIDIA H200 NVL", 600.0, [1785, 3201]),
    ("h200-sxm", "NVIDIA H200", 700.0, [1980, 3201]),
    ("l4", "NVIDIA L4", 72.0, [2040, 6251]),
    ("l40", "NVIDIA L40", 300.0, [2490, 9001]),
    ("l40s", "NVIDIA L40S", 350.0, [2520, 9001]),
    ("rtx-3090", "NVIDIA GeForce RTX 3090", 350.0, [2100, 9751]),
    ("rtx-4090", "NVIDIA GeForce RTX 4090", 450.0, [3105, 10501]),
    ("rtx-a6000", "NVIDIA RTX A6000", 300.0, [2100, 8001]),
    ("t4", "Tesla T4", 70.0, [1590, 5001]),
];

/// The GPUs of the engines, if GPU metrics are served. `pod` is the namespace and name of their pod.
pub(crate) fn gpus(live: &LiveArgs, pod: Option<[String; 2]>) -> Result<Option<GpuMetrics>, Unusable> {
    if live.control.gpu_metrics_address.is_none() {
        return Ok(None);
    }
    let args = match live.engine.command_line(None)? {
        Some(args) => args,
        None => VllmArgs::read_words(&[] as &[String], Deployment::default())
            .map_err(|_| Unusable::new("vLLM's own defaults are invalid (this is a bug)"))?,
    };
    let per_engine = live.ranks.tensor_parallel_size;
    gpu_metrics(&live.control.gpu_metrics_gpu, per_engine, args.gpu_memory_utilization, pod).map(Some)
}

fn gpu_metrics(
    gpu: &str,
    per_engine: u32,
    memory_utilization: f64,
    pod: Option<[String; 2]>,
) -> Result<GpuMetrics, Unusable> {
    let found = Gpu::named(gpu).and_then(|gpu| Some((gpu, BOARDS.iter().find(|(name, ..)| *name == gpu.name)?)));
    let Some((gpu, (_, model_name, power_w, clocks_mhz))) = found else {
        let names: Vec<_> = BOARDS.iter().map(|(name, ..)| *name).collect();
        let is_known = GPUS.iter().any(|known| Gpu::named(gpu).is_some_and(|gpu| gpu.name == known.name));
        let reason = if is_known { "the power and clocks of this GPU are not known" } else { "unknown GPU" };
        let message = format!("invalid --gpu-metrics-gpu `{gpu}`: {reason}; expected one of {}", names.join(", "));
        return Err(Unusable::new(message));
    };
    Ok(GpuMetrics {
        model_name: (*model_name).to_owned(),
        memory_bytes: gpu.memory_bytes(),
        memory_utilization,
        power_w: *power_w,
        clocks_mhz: *clocks_mhz,
        ridge_tokens: gpu.spec.peak_flops / gpu.spec.memory_bytes_per_s,
        per_engine,
        hostname: hostname(),
        pod,
    })
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    name.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_gpus_of_the_table() {
        for (name, model_name, power_w, [sm, memory]) in BOARDS {
            let gpu = Gpu::named(name).filter(|gpu| gpu.name == *name).expect("the table has it");
            assert!(!model_name.is_empty() && (60.0..1_500.0).contains(power_w), "{name}");
            // In each memory clock cycle, a line of the bus transfers two bits. These are the known bus widths.
            let width = gpu.spec.memory_bytes_per_s * 4.0 / (f64::from(*memory) * 1e6);
            let fits = |bits: &&f64| (width / **bits - 1.0).abs() < 0.04;
            let widths = [192.0, 256.0, 384.0, 3_072.0, 5_120.0, 6_144.0, 8_192.0];
            assert!(widths.iter().any(|bits| fits(&bits)), "{name}: {width}");
            assert!((1_000..3_500).contains(sm), "{name}");
        }
        let error = gpu_metrics("mi300x", 1, 0.9, None).expect_err("it is not NVIDIA's");
        assert!(
            error.message.contains("power and clocks of this GPU are not known; expected one of a10"),
            "{}",
            error.message
        );
        assert!(gpu_metrics("h900", 1, 0.9, None).expect_err("there is none").message.contains("unknown GPU"));
    }
}
