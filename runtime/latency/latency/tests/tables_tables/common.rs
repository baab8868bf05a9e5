//! Writes a package for tests, in the layout of the real one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use vcr_core::latency::StepShape;
use vcr_latency::tables::{Priced, Tables, TablesError, TablesInput};

pub(crate) enum Column {
    Texts(Vec<String>),
    Counts(Vec<i64>),
    Numbers(Vec<f64>),
}

impl Column {
    pub(crate) fn texts(text: &str, rows: usize) -> Self {
        Self::Texts(vec![text.to_owned(); rows])
    }
}

pub(crate) fn write(path: &Path, columns: &[(&str, Column)]) {
    fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("the table can be written");
    let fields = columns.iter().map(|(name, column)| match column {
        Column::Texts(_) => format!("OPTIONAL BYTE_ARRAY {name} (UTF8);"),
        Column::Counts(_) => format!("OPTIONAL INT64 {name};"),
        Column::Numbers(_) => format!("REQUIRED DOUBLE {name};"),
    });
    let schema = format!("message rows {{ {} }}", fields.collect::<Vec<_>>().join(" "));
    let schema = Arc::new(parse_message_type(&schema).expect("the table can be written"));
    let mut writer =
        SerializedFileWriter::new(File::create(path).expect("the table can be written"), schema, Arc::default())
            .expect("the table can be written");
    let mut group = writer.next_row_group().expect("the table can be written");
    for (_, column) in columns {
        let mut next = group.next_column().expect("the table can be written").expect("a column for each field");
        match column {
            Column::Texts(texts) => {
                let values: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(text.as_str())).collect();
                next.typed::<ByteArrayType>()
                    .write_batch(&values, Some(&vec![1; texts.len()]), None)
                    .expect("the table can be written");
            }
            Column::Counts(counts) => {
                next.typed::<Int64Type>()
                    .write_batch(counts, Some(&vec![1; counts.len()]), None)
                    .expect("the table can be written");
            }
            Column::Numbers(numbers) => {
                next.typed::<DoubleType>().write_batch(numbers, None, None).expect("the table can be written");
            }
        }
        next.close().expect("the table can be written");
    }
    group.close().expect("the table can be written");
    writer.close().expect("the table can be written");
}

/// A GPU with round numbers: 1 TB/s, 100 TFLOP/s (200 in FP8), and a microsecond for every kernel that moves memory.
const SYSTEM: &str = "\
data_dir: data/gpu
gpu:
  mem_bw: 1000000000000
  mem_bw_empirical_scaling_factor: 1.0
  mem_empirical_constant_latency: 0.000001
  bfloat16_tc_flops: 100000000000000
  fp8_tc_flops: 200000000000000
  sm_version: 90
node:
  num_gpus_per_node: 8
  intra_node_bw: 100000000000
  inter_node_bw: 10000000000
misc:
  nccl_version: '2.0'
";

/// Two layers; four heads of size 16, which share two pairs of keys and values.
pub(crate) const DENSE: &str = r#"{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000}"#;

/// `DENSE` with 8 experts. Each token uses two of them.
pub(crate) const EXPERTS: &str = r#"{"architectures": ["MixtralForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
    "num_local_experts": 8, "num_experts_per_tok": 2}"#;

/// `DENSE` with a latent cache and a shared expert.
pub(crate) const LATENT: &str = r#"{"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "moe_intermediate_size": 128,
    "vocab_size": 1000, "n_routed_experts": 8, "num_experts_per_tok": 2}"#;

/// A row of the tables of attention: heads, pairs of keys and values, batch, length, window, milliseconds.
pub(crate) type AttentionRow = (i64, i64, i64, i64, i64, f64);

/// A row of the tables of latent attention: heads, batch, length, milliseconds.
pub(crate) type LatentRow = (i64, i64, i64, f64);

/// A row of the table of experts: intermediate size, tensor and expert parallel sizes, tokens, milliseconds.
pub(crate) type ExpertRow = (i64, i64, i64, i64, f64);

pub(crate) struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// A package with a system, the three models above and no tables.
    pub(crate) fn new() -> Self {
        let fake = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        fake.text("systems/gpu.yaml", SYSTEM);
        fake.text("model_configs/us--dense_config.json", DENSE);
        fake.text("model_configs/us--experts_config.json", EXPERTS);
        fake.text("model_configs/us--latent_config.json", LATENT);
        fs::create_dir_all(fake.path("systems/data/gpu")).expect("the table can be written");
        fake
    }

    /// A package with tables. Every shape of the dense model takes a millisecond for each column and each row;
    /// attention takes a tenth of its batch.
    pub(crate) fn with_tables() -> Self {
        let fake = Self::new();
        let rows = [1, 8, 64].into_iter().flat_map(|m| {
            let shapes = [(128, 64), (64, 64), (256, 64), (64, 128), (1000, 64), (8, 64)];
            shapes.into_iter().map(move |(n, k)| (m, n, k, (n + m) as f64))
        });
        fake.gemm("1.0", &rows.collect::<Vec<_>>());
        let attention = |heads: i64, kv_heads: i64| {
            [1, 4].into_iter().flat_map(move |batch| {
                [16, 64, 256].map(|length| (heads, kv_heads, batch, length, 0, batch as f64 / 10.0))
            })
        };
        let rows: Vec<AttentionRow> = attention(4, 2).chain(attention(2, 1)).collect();
        fake.attention("context_attention", &rows);
        fake.attention("generation_attention", &rows);
        fake
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub(crate) fn text(&self, relative: &str, text: &str) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("the table can be written");
        fs::write(path, text).expect("the table can be written");
    }

    pub(crate) fn table(&self, operator: &str, version: &str, file: &str) -> PathBuf {
        self.path(&format!("systems/data/gpu/{operator}/vllm/{version}/{file}.parquet"))
    }

    /// Multiplications in bfloat16: rows, columns, inner size, milliseconds.
    pub(crate) fn gemm(&self, version: &str, rows: &[(i64, i64, i64, f64)]) {
        self.gemm_of("bfloat16", version, rows);
    }

    pub(crate) fn gemm_of(&self, dtype: &str, version: &str, rows: &[(i64, i64, i64, f64)]) {
        let columns = [
            ("gemm_dtype", Column::texts(dtype, rows.len())),
            ("m", Column::Counts(rows.iter().map(|row| row.0).collect())),
            ("n", Column::Counts(rows.iter().map(|row| row.1).collect())),
            ("k", Column::Counts(rows.iter().map(|row| row.2).collect())),
            ("latency", Column::Numbers(rows.iter().map(|row| row.3).collect())),
        ];
        write(&self.table("gemm", version, "gemm_perf"), &columns);
    }

    /// Rows of attention. For decodes, the length is that of the sequence.
    pub(crate) fn attention(&self, name: &str, rows: &[AttentionRow]) {
        let is_decode = name.starts_with("generation");
        let count = |value: &dyn Fn(&AttentionRow) -> i64| Column::Counts(rows.iter().map(value).collect());
        let columns = [
            ("kernel_source", Column::texts("flash", rows.len())),
            ("num_heads", count(&|row| row.0)),
            ("num_key_value_heads", count(&|row| row.1)),
            ("head_dim", count(&|_| 16)),
            ("batch_size", count(&|row| row.2)),
            ("isl", count(&|row| if is_decode { 1 } else { row.3 })),
            ("step", count(&|row| if is_decode { row.3 - 1 } else { 0 })),
            ("window_size", count(&|row| row.4)),
            ("attn_dtype", Column::texts("bfloat16", rows.len())),
            ("kv_cache_dtype", Column::texts("bfloat16", rows.len())),
            ("latency", Column::Numbers(rows.iter().map(|row| row.5).collect())),
        ];
        write(&self.table("attention", "1.0", &format!("{name}_perf")), &columns);
    }

    pub(crate) fn latent(&self, name: &str, rows: &[LatentRow]) {
        let is_decode = name.contains("generation");
        let count = |value: &dyn Fn(&LatentRow) -> i64| Column::Counts(rows.iter().map(value).collect());
        let columns = [
            ("mla_dtype", Column::texts("bfloat16", rows.len())),
            ("kv_cache_dtype", Column::texts("bfloat16", rows.len())),
            ("gemm_type", Column::texts("bfloat16", rows.len())),
            ("num_heads", count(&|row| row.0)),
            ("batch_size", count(&|row| row.1)),
            ("isl", count(&|row| if is_decode { 1 } else { row.2 })),
            ("step", count(&|row| if is_decode { row.2 - 1 } else { 0 })),
            ("latency", Column::Numbers(rows.iter().map(|row| row.3).collect())),
        ];
        write(&self.table("mla", "1.0", &format!("{name}_perf")), &columns);
    }

    pub(crate) fn experts(&self, spread: &str, rows: &[ExpertRow]) {
        let count = |value: &dyn Fn(&ExpertRow) -> i64| Column::Counts(rows.iter().map(value).collect());
        let columns = [
            ("moe_dtype", Column::texts("bfloat16", rows.len())),
            ("distribution", Column::texts(spread, rows.len())),
            ("hidden_size", count(&|_| 64)),
            ("inter_size", count(&|row| row.0)),
            ("num_experts", count(&|_| 8)),
            ("topk", count(&|_| 2)),
            ("moe_tp_size", count(&|row| row.1)),
            ("moe_ep_size", count(&|row| row.2)),
            ("num_tokens", count(&|row| row.3)),
            ("latency", Column::Numbers(rows.iter().map(|row| row.4).collect())),
        ];
        write(&self.table("moe", "1.0", "moe_perf"), &columns);
    }

    /// All-reduces: kernel, GPUs, values, milliseconds.
    pub(crate) fn all_reduce(&self, rows: &[(&str, i64, i64, f64)]) {
        let columns = [
            ("kernel_source", Column::Texts(rows.iter().map(|row| row.0.to_owned()).collect())),
            ("num_gpus", Column::Counts(rows.iter().map(|row| row.1).collect())),
            ("message_size", Column::Counts(rows.iter().map(|row| row.2).collect())),
            ("latency", Column::Numbers(rows.iter().map(|row| row.3).collect())),
        ];
        write(&self.table("comm", "1.0", "custom_allreduce_perf"), &columns);
    }

    /// The model `us/NAME` on one GPU of this package.
    pub(crate) fn input(&self, name: &str) -> TablesInput {
        let data = Some(self.folder.path().to_owned());
        TablesInput { data, ..TablesInput::new("gpu", &format!("us/{name}")) }
    }

    pub(crate) fn tables(&self, name: &str) -> Tables {
        Tables::new(&self.input(name)).expect("the tables can be read")
    }

    /// The error from reading a model whose tables cannot be read.
    #[track_caller]
    pub(crate) fn refusal(&self, input: &TablesInput) -> TablesError {
        Tables::new(input).err().expect("it is refused")
    }
}

pub(crate) fn decodes(requests: u64, context: u64) -> StepShape {
    StepShape {
        decode_requests: requests,
        decode_tokens: requests,
        decode_context_tokens: requests * context,
        sampled_requests: requests,
        ..StepShape::default()
    }
}

/// A step of prompts, each with its length and the length of its prefix.
pub(crate) fn prompts(prompts: &[(u64, u64)]) -> StepShape {
    StepShape {
        prefill_requests: prompts.len() as u64,
        prefill_tokens: prompts.iter().map(|(length, _)| length).sum(),
        prefill_context_tokens: prompts.iter().map(|(_, before)| before).sum(),
        prefill_attention_pairs: prompts.iter().map(|(n, before)| n * before + n * (n + 1) / 2).sum(),
        sampled_requests: prompts.len() as u64,
        ..StepShape::default()
    }
}

#[track_caller]
pub(crate) fn operator(tables: &Tables, shape: &StepShape, name: &str) -> Priced {
    let operators = tables.operators(shape);
    let found = operators.iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {operators:?}")).1
}

#[track_caller]
pub(crate) fn ms(tables: &Tables, shape: &StepShape, name: &str) -> f64 {
    operator(tables, shape, name).ns() / 1e6
}

#[track_caller]
pub(crate) fn assert_close(one: f64, other: f64) {
    assert!((one - other).abs() <= 1e-9 * other.abs().max(1e-9), "{one} is not {other}");
}
