//! Describes a GPU and its node: `systems/<name>.yaml`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::tables::error::TablesError;
use crate::tables::{Dtype, Pipe};

/// The fields of the file that are used. Bandwidths are in bytes per second, times in seconds.
#[derive(Debug, Deserialize)]
struct File {
    data_dir: String,
    gpu: Gpu,
    node: Node,
    #[serde(default)]
    misc: Misc,
}

#[derive(Debug, Deserialize)]
struct Gpu {
    mem_bw: f64,
    mem_capacity: Option<f64>,
    #[serde(default = "default_scaling")]
    mem_bw_empirical_scaling_factor: f64,
    #[serde(default)]
    mem_empirical_constant_latency: f64,
    bfloat16_tc_flops: f64,
    int8_tc_flops: Option<f64>,
    fp8_tc_flops: Option<f64>,
    fp4_tc_flops: Option<f64>,
    sm_version: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Node {
    num_gpus_per_node: u32,
    intra_node_bw: f64,
    inter_node_bw: f64,
    num_gpus_per_rack: Option<u32>,
    inter_rack_bw: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
struct Misc {
    nccl_version: Option<String>,
}

fn default_scaling() -> f64 {
    0.8
}

#[derive(Debug)]
pub(crate) struct System {
    file: File,
}

impl System {
    /// Reads the file of a system.
    ///
    /// # Errors
    /// If it cannot be read, or a number in it is not above 0.
    pub(crate) fn read(path: &Path) -> Result<Self, TablesError> {
        let text = vcr_base::input::read_yaml(path, vcr_base::input::MAX_CONFIG_BYTES)
            .map_err(|error| TablesError::file(path, format!("cannot read it: {error}")))?;
        let file: File = yaml_serde::from_str(&text).map_err(|error| TablesError::file(path, error.to_string()))?;
        let numbers = [
            ("gpu.mem_bw", file.gpu.mem_bw),
            ("gpu.mem_capacity", file.gpu.mem_capacity.unwrap_or(1.0)),
            ("gpu.mem_bw_empirical_scaling_factor", file.gpu.mem_bw_empirical_scaling_factor),
            ("gpu.bfloat16_tc_flops", file.gpu.bfloat16_tc_flops),
            ("gpu.int8_tc_flops", file.gpu.int8_tc_flops.unwrap_or(1.0)),
            ("gpu.fp8_tc_flops", file.gpu.fp8_tc_flops.unwrap_or(1.0)),
            ("gpu.fp4_tc_flops", file.gpu.fp4_tc_flops.unwrap_or(1.0)),
            ("node.num_gpus_per_node", f64::from(file.node.num_gpus_per_node)),
            ("node.intra_node_bw", file.node.intra_node_bw),
            ("node.inter_node_bw", file.node.inter_node_bw),
            ("node.inter_rack_bw", file.node.inter_rack_bw.unwrap_or(1.0)),
        ];
        for (field, value) in numbers {
            if !(value.is_finite() && value > 0.0) {
                return Err(TablesError::file(path, format!("`{field}` is {value}: expected a number above 0")));
            }
        }
        let constant = file.gpu.mem_empirical_constant_latency;
        if !(0.0..1.0).contains(&constant) {
            let reason = format!("`gpu.mem_empirical_constant_latency` is {constant}: expected seconds from 0 to 1");
            return Err(TablesError::file(path, reason));
        }
        Ok(Self { file })
    }

    /// The folder of the system's tables, relative to the folder of its file.
    pub(crate) fn data_folder(&self) -> PathBuf {
        PathBuf::from(&self.file.data_dir)
    }

    /// The version of NCCL that ran in the measurements of collectives.
    pub(crate) fn nccl_version(&self) -> Option<&str> {
        self.file.misc.nccl_version.as_deref()
    }

    /// Whether the GPU supports FP8, which it does from SM 8.9 on.
    pub(crate) fn has_fp8(&self) -> bool {
        self.file.gpu.sm_version.is_some_and(|version| version >= 89)
    }

    pub(crate) fn memory_bytes(&self) -> Option<f64> {
        self.file.gpu.mem_capacity
    }

    pub(crate) fn gpus_per_node(&self) -> u32 {
        self.file.node.num_gpus_per_node
    }

    /// Operations per second with a data type. If the file lacks the type, that of bfloat16.
    pub(crate) fn flops(&self, dtype: Dtype) -> f64 {
        self.peak(dtype).1
    }

    /// The arithmetic that a data type is computed in, and its operations per second.
    pub(crate) fn peak(&self, dtype: Dtype) -> (&'static str, f64) {
        let gpu = &self.file.gpu;
        let (name, of_pipe) = match dtype.pipe {
            Pipe::Bfloat16 => ("bfloat16", None),
            Pipe::Int8 => ("int8", gpu.int8_tc_flops),
            Pipe::Fp8 => ("fp8", gpu.fp8_tc_flops),
            Pipe::Fp4 => ("fp4", gpu.fp4_tc_flops),
        };
        of_pipe.map_or(("bfloat16", gpu.bfloat16_tc_flops), |flops| (name, flops))
    }

    /// The minimum time for these operations and this memory traffic, in nanoseconds.
    pub(crate) fn limit_ns(&self, operations: f64, dtype: Dtype, bytes: f64) -> f64 {
        (operations / self.flops(dtype)).max(bytes / self.file.gpu.mem_bw) * 1e9
    }

    /// The time of memory traffic in practice, in nanoseconds.
    pub(crate) fn traffic_ns(&self, bytes: f64) -> f64 {
        let gpu = &self.file.gpu;
        let bandwidth = gpu.mem_bw * gpu.mem_bw_empirical_scaling_factor;
        (bytes / bandwidth + gpu.mem_empirical_constant_latency) * 1e9
    }

    /// The time of a kernel without a table, in nanoseconds: its minimum time at the efficiency of memory traffic, plus
    /// the constant time of a kernel.
    pub(crate) fn formula_ns(&self, limit_ns: f64) -> f64 {
        limit_ns / self.efficiency() + self.constant_ns()
    }

    /// The fraction of the peaks that kernels reach in practice.
    pub(crate) fn efficiency(&self) -> f64 {
        self.file.gpu.mem_bw_empirical_scaling_factor
    }

    pub(crate) fn constant_ns(&self) -> f64 {
        self.file.gpu.mem_empirical_constant_latency * 1e9
    }

    /// Bandwidth between two of `gpus` GPUs, in bytes per second.
    pub(crate) fn link_bytes_per_s(&self, gpus: u32) -> f64 {
        let node = &self.file.node;
        if gpus <= node.num_gpus_per_node {
            node.intra_node_bw
        } else if gpus <= node.num_gpus_per_rack.unwrap_or(u32::MAX) {
            node.inter_node_bw
        } else {
            node.inter_rack_bw.unwrap_or(node.inter_node_bw)
        }
    }
}
