//! Tests the price of each operator, within its rows and beyond them.

use vcr_core::latency::StepShape;
use vcr_latency::tables::{Priced, Source, Tables, TablesInput};

use crate::common::{Fake, assert_close, decodes, ms, operator, prompts};

#[track_caller]
fn assert_is(priced: Priced, source: Source, ms: f64) {
    assert_close(priced.ns() / 1e6, ms);
    assert_close(priced.of(source) / 1e6, ms);
}

#[test]
fn multiplications_are_lines_between_rows_and_keep_their_utilisation_beyond() {
    let tables = Fake::with_tables().tables("dense");
    // Two layers. A shape takes as many milliseconds as it has columns and rows.
    assert_is(operator(&tables, &decodes(8, 64), "qkv projection"), Source::Measured, 2.0 * 136.0);
    assert_is(operator(&tables, &decodes(8, 64), "down projection"), Source::Measured, 2.0 * 72.0);
    assert_is(operator(&tables, &decodes(8, 64), "logits"), Source::Measured, 1008.0);
    assert_is(operator(&tables, &decodes(22, 64), "qkv projection"), Source::Interpolated, 2.0 * 150.0);
    // The memory limit, as a count of values: m n + m k + n k. The median utilisation of the three rows is that of
    // the last row.
    let limit = |m: f64| m * 128.0 + m * 64.0 + 128.0 * 64.0;
    let utilisations = [1.0, 8.0, 64.0].map(|m| limit(m) / (128.0 + m));
    let median = {
        let mut sorted = utilisations;
        sorted.sort_by(f64::total_cmp);
        sorted[1]
    };
    assert_is(
        operator(&tables, &decodes(128, 64), "qkv projection"),
        Source::Extrapolated,
        2.0 * limit(128.0) / median,
    );
}

#[test]
fn rows_that_are_faster_than_the_hardware_are_not_believed() {
    let fake = Fake::with_tables();
    fake.gemm("1.1", &[(8, 128, 64, 1e-9)]);
    // 2 bytes for each of 8 x 128 + 8 x 64 + 128 x 64 values, at 1 TB/s.
    assert_close(operator(&fake.tables("dense"), &decodes(8, 64), "qkv projection").ns(), 2.0 * 2.0 * 9728.0 / 1e3);
}

#[test]
fn shapes_without_rows_take_the_utilisation_of_their_neighbours() {
    let fake = Fake::with_tables();
    // The time is twice the hardware's limit everywhere, so any mean of the utilisation is a half.
    let half = |m: i64, n: i64, k: i64| (m, n, k, 2.0 * 2.0 * (m * n + m * k + n * k) as f64 / 1e9);
    fake.gemm("1.1", &[half(8, 64, 64), half(8, 512, 64), half(8, 64, 256), half(8, 512, 256)]);
    let tables = fake.tables("dense");
    let expected = 2.0 * half(8, 128, 64).3;
    assert_is(operator(&tables, &decodes(8, 64), "qkv projection"), Source::Interpolated, expected);
    // Only the number of columns of this matrix is beyond all rows.
    let logits = operator(&tables, &decodes(8, 64), "logits");
    assert_is(logits, Source::Extrapolated, half(8, 1000, 64).3);
    // There is no similar shape: the limit, plus a kernel's microsecond.
    fake.gemm("1.2", &[half(8, 65536, 65536)]);
    let expected = 2.0 * (half(8, 128, 64).3 / 2.0 + 1e-3);
    assert_is(operator(&fake.tables("dense"), &decodes(8, 64), "qkv projection"), Source::Formula, expected);
}

#[test]
fn tensor_parallelism_divides_shapes_and_adds_all_reduces() {
    let fake = Fake::with_tables();
    let rows = |kernel, factor: f64| [(kernel, 2, 64, factor), (kernel, 2, 640, 10.0 * factor)];
    fake.all_reduce(&[rows("own_eager", 9.0), rows("own_graph", 1.0)].concat());
    let one = fake.tables("dense");
    let two = Tables::new(&TablesInput { tensor_parallel: 2, ..fake.input("dense") }).unwrap();
    let shape = decodes(8, 64);
    // Two heads, and a pair of keys and values: 2 x 16 + 2 x 16 columns.
    assert_is(operator(&two, &shape, "qkv projection"), Source::Measured, 2.0 * 72.0);
    assert_is(operator(&two, &shape, "gate and up projection"), Source::Measured, 2.0 * 136.0);
    // A message of 64 values for each token, with the kernels of CUDA graphs, twice per layer.
    assert_is(operator(&two, &decodes(1, 64), "all-reduces"), Source::Measured, 4.0);
    assert_is(operator(&two, &decodes(5, 64), "all-reduces"), Source::Interpolated, 4.0 * 5.0);
    assert_is(operator(&two, &decodes(20, 64), "all-reduces"), Source::Extrapolated, 4.0 * 20.0);
    assert!(!one.operators(&shape).iter().any(|(name, _)| name.contains("reduce")));
    // Four GPUs have no rows. The rows of two GPUs are scaled by the bytes that a ring sends.
    fake.text(
        "model_configs/us--dense_config.json",
        &crate::common::DENSE.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 8"),
    );
    let four = Tables::new(&TablesInput { tensor_parallel: 4, ..fake.input("dense") }).unwrap();
    assert_is(operator(&four, &decodes(1, 64), "all-reduces"), Source::Extrapolated, 4.0 * 1.5);
}

#[test]
fn all_reduces_that_take_longer_than_larger_ones_are_left_out() {
    let fake = Fake::with_tables();
    fake.all_reduce(&[("graph", 2, 64, 1.0), ("graph", 2, 128, 8.0), ("graph", 2, 256, 4.0)]);
    let two = Tables::new(&TablesInput { tensor_parallel: 2, ..fake.input("dense") }).unwrap();
    // Between the rows of 64 and 256 values. Four all-reduces in two layers.
    assert_is(operator(&two, &decodes(2, 64), "all-reduces"), Source::Interpolated, 4.0 * 2.0);
}

#[test]
fn attention_of_prompts_grows_with_the_square_between_rows() {
    let fake = Fake::with_tables();
    let row = |batch, length: i64, ms| (4, 2, batch, length, 0, ms);
    let of_prompts = [row(1, 16, 1.0), row(1, 64, 9.0), row(4, 16, 4.0), row(4, 64, 36.0)];
    fake.attention("context_attention", &of_prompts);
    let tables = fake.tables("dense");
    let extra = 1.1 * (2.0 * (1e-3 + 192e-9) + 2.0 * (1e-3 + 64e-9));
    let attention = |shape| ms(&tables, &shape, "attention of prompts") / 2.0 - extra;
    let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-6, "{one} is not {other}");
    close(attention(prompts(&[(16, 0)])), 1.0);
    close(attention(prompts(&[(16, 0); 4])), 4.0);
    close(attention(prompts(&[(16, 0); 2])), 2.0);
    // Halfway along the sequence, the square root is halfway from 1 to 3.
    close(attention(prompts(&[(40, 0)])), 4.0);
    // After a prefix: the time of the whole sequence, minus the prefix's part, which grows with the square.
    close(attention(prompts(&[(32, 32)])), 9.0 * 0.75);
    let measured = operator(&tables, &prompts(&[(16, 0)]), "attention of prompts");
    assert!(measured.of(Source::Measured) > 0.0 && measured.of(Source::Interpolated) == 0.0);
    let beyond = operator(&tables, &prompts(&[(512, 0)]), "attention of prompts");
    assert!(beyond.of(Source::Extrapolated) > 0.9 * beyond.ns());
}

#[test]
fn unlike_prompts_are_priced_by_their_pairs_and_not_by_their_mean() {
    let fake = Fake::with_tables();
    // A nanosecond for each pair of a causal prompt.
    let row = |batch: i64, length: i64| (4, 2, batch, length, 0, (batch * length * length) as f64 / 2e6);
    let lengths = [1, 16, 64, 256, 1024];
    let rows: Vec<_> = [1, 2, 4].into_iter().flat_map(|batch| lengths.map(|length| row(batch, length))).collect();
    fake.attention("context_attention", &rows);
    let tables = fake.tables("dense");
    let attention = |shape| ms(&tables, &shape, "attention of prompts");
    let pairs = |lengths: &[f64]| 2.0 * lengths.iter().map(|length| length * length / 2e6).sum::<f64>();
    for lengths in [&[1000.0, 8.0][..], &[500.0, 500.0], &[700.0, 20.0, 20.0]] {
        let shape = prompts(&lengths.iter().map(|&length| (length as u64, 0)).collect::<Vec<_>>());
        let (got, expected) = (attention(shape), pairs(lengths) + 8.8e-3);
        assert!((got / expected - 1.0).abs() < 0.02, "{lengths:?}: {got} ms, expected {expected}");
    }
}

#[test]
fn attention_of_decodes_is_a_mean_around_their_context() {
    let fake = Fake::with_tables();
    let row = |batch: i64, length: i64| (4, 2, batch, length, 0, batch as f64 * length as f64);
    let rows: Vec<_> =
        [1, 4].into_iter().flat_map(|batch| [2, 100, 200, 400].map(|length| row(batch, length))).collect();
    fake.attention("generation_attention", &rows);
    let tables = fake.tables("dense");
    assert_is(operator(&tables, &decodes(4, 150), "attention of decodes"), Source::Interpolated, 2.0 * 4.0 * 150.0);
    assert_is(operator(&tables, &decodes(2, 150), "attention of decodes"), Source::Interpolated, 2.0 * 2.0 * 150.0);
    // Far beyond the rows, keys and values grow with batch and context, and so does the time.
    let near = ms(&tables, &decodes(64, 4096), "attention of decodes");
    let far = ms(&tables, &decodes(128, 8192), "attention of decodes");
    assert!((far / near / 4.0 - 1.0).abs() < 0.1, "{near} and {far} ms");
}

#[test]
fn the_kernel_with_most_rows_counts() {
    let fake = Fake::with_tables();
    let path = fake.table("attention", "1.0", "generation_attention_perf");
    let count = |values: &[i64]| crate::common::Column::Counts(values.to_vec());
    let kernels = ["rare", "usual", "usual"].map(str::to_owned).to_vec();
    let columns = [
        ("kernel_source", crate::common::Column::Texts(kernels)),
        ("num_heads", count(&[4; 3])),
        ("num_key_value_heads", count(&[2; 3])),
        ("head_dim", count(&[16; 3])),
        ("batch_size", count(&[1; 3])),
        ("isl", count(&[1; 3])),
        ("step", count(&[99, 49, 199])),
        ("attn_dtype", crate::common::Column::texts("bfloat16", 3)),
        ("kv_cache_dtype", crate::common::Column::texts("bfloat16", 3)),
        ("latency", crate::common::Column::Numbers(vec![9.0, 1.0, 4.0])),
    ];
    crate::common::write(&path, &columns);
    let tables = fake.tables("dense");
    assert_close(ms(&tables, &decodes(1, 100), "attention of decodes"), 2.0 * 2.0);
}

#[test]
fn windows_have_tables_of_their_own() {
    let fake = Fake::with_tables();
    let config = crate::common::EXPERTS.replace("MixtralForCausalLM", "GptOssForCausalLM").replacen(
        '{',
        "{\"sliding_window\": 32,",
        1,
    );
    fake.text("model_configs/us--windowed_config.json", &config);
    fake.experts("power_law_1.2", &[(128, 1, 1, 1, 1.0)]);
    let rows = |window, ms| [(4, 2, 1, 16, window, ms), (4, 2, 1, 1024, window, ms)];
    fake.attention("generation_attention", &[rows(0, 5.0), rows(32, 2.0)].concat());
    let tables = fake.tables("windowed");
    // One layer of each kind.
    assert_close(ms(&tables, &decodes(1, 512), "attention of decodes"), 5.0);
    assert_close(ms(&tables, &decodes(1, 512), "windowed attention of decodes"), 2.0);
}

#[test]
fn norms_over_all_heads_are_added_up_between_gpus() {
    let fake = Fake::with_tables();
    let config = crate::common::EXPERTS.replace("MixtralForCausalLM", "MiniMaxM2ForCausalLM");
    fake.text("model_configs/us--whole_config.json", &config);
    fake.experts("power_law_1.2", &[(128, 1, 1, 1, 1.0), (128, 2, 1, 1, 1.0)]);
    fake.all_reduce(&[("own_graph", 2, 4, 1.0), ("own_graph", 2, 40, 10.0)]);
    let one = fake.tables("whole");
    let two = Tables::new(&TablesInput { tensor_parallel: 2, ..fake.input("whole") }).unwrap();
    // Two 32-bit numbers for each token, in each of two layers.
    assert_is(operator(&two, &decodes(1, 64), "all-reduces of norms"), Source::Measured, 2.0);
    assert_is(operator(&two, &decodes(5, 64), "all-reduces of norms"), Source::Interpolated, 2.0 * 5.0);
    let names =
        |tables: &Tables| tables.operators(&decodes(1, 64)).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert!(!names(&one).iter().any(|name| name == "all-reduces of norms"));
    for name in ["squares of queries and keys", "norms of queries and keys"] {
        let ns = operator(&one, &decodes(1, 64), name).ns();
        assert!(ns > 0.0 && ns >= operator(&two, &decodes(1, 64), name).ns(), "{name}");
    }
    // Norms of single heads need no all-reduce.
    assert!(!names(&fake.tables("experts")).iter().any(|name| name.contains("queries and keys")));
}

#[test]
fn a_row_slower_than_a_larger_one_is_no_price() {
    let fake = Fake::with_tables();
    let rows = [(1, 128, 64, 129.0), (2, 128, 64, 300.0), (4, 128, 64, 132.0), (8, 128, 64, 136.0)];
    fake.gemm("1.1", &rows);
    let tables = fake.tables("dense");
    let at = |m| operator(&tables, &decodes(m, 64), "qkv projection");
    assert_is(at(2), Source::Interpolated, 2.0 * 130.0);
    fake.experts("power_law_1.2", &[(128, 1, 1, 1, 1.0), (128, 1, 1, 2, 9.0), (128, 1, 1, 3, 3.0)]);
    assert_is(operator(&fake.tables("experts"), &decodes(2, 64), "experts"), Source::Interpolated, 2.0 * 2.0);
}

#[test]
fn experts_are_looked_up_by_their_whole_shape() {
    let fake = Fake::with_tables();
    let tokens = |tp, ep, factor: f64| [(128, tp, ep, 1, factor), (128, tp, ep, 9, 9.0 * factor)];
    fake.experts("power_law_1.2", &[tokens(1, 1, 1.0), tokens(2, 1, 0.6), tokens(1, 2, 0.5)].concat());
    fake.all_reduce(&[("graph", 2, 64, 1.0)]);
    let with = |tensor_parallel, expert_parallel, attention_dp| {
        Tables::new(&TablesInput { tensor_parallel, expert_parallel, attention_dp, ..fake.input("experts") }).unwrap()
    };
    let experts = |tables: &Tables, tokens| operator(tables, &decodes(tokens, 64), "experts");
    assert_is(experts(&with(1, 1, 1), 1), Source::Measured, 2.0);
    assert_is(experts(&with(1, 1, 1), 5), Source::Interpolated, 10.0);
    assert_is(experts(&with(2, 1, 1), 5), Source::Interpolated, 6.0);
    assert_is(experts(&with(2, 2, 1), 5), Source::Interpolated, 5.0);
    // The tokens of both ranks are sent to the experts and back.
    let ranks = with(1, 2, 2);
    assert_is(experts(&ranks, 3), Source::Interpolated, 2.0 * 6.0 * 0.5);
    for name in ["all-gather", "reduce-scatter"] {
        // There is no NCCL table: half of 2 bytes x 64 values x 2 ranks x 4 tokens.
        let expected = 2.0 * (1e-3 + 0.5 * 2.0 * 64.0 * 2.0 * 4.0 / 100e9 * 1e3);
        assert_is(operator(&ranks, &decodes(4, 64), name), Source::Formula, expected);
    }
    // Another shape, half as wide, has the same utilisation.
    let config = crate::common::EXPERTS.replace("\"intermediate_size\": 128", "\"intermediate_size\": 64");
    fake.text("model_configs/us--narrow_config.json", &config);
    let narrow = operator(&fake.tables("narrow"), &decodes(9, 64), "experts");
    assert!(narrow.of(Source::Extrapolated) == narrow.ns());
    assert!((0.45..0.75).contains(&(narrow.ns() / experts(&with(1, 1, 1), 9).ns())), "{narrow:?}");
}

#[test]
fn other_spreads_of_tokens_stand_in() {
    let fake = Fake::with_tables();
    fake.experts("balanced", &[(128, 1, 1, 1, 3.0)]);
    assert_close(ms(&fake.tables("experts"), &decodes(1, 64), "experts"), 6.0);
}

#[test]
fn latent_attention_is_one_block_and_shared_experts_run_beside_the_others() {
    let fake = Fake::with_tables();
    fake.experts("power_law_1.01", &[(128, 1, 1, 1, 1000.0), (128, 1, 1, 64, 1000.0)]);
    let rows = [(4, 1, 16, 1.0), (4, 1, 64, 4.0), (4, 8, 16, 8.0), (4, 8, 64, 32.0)];
    fake.latent("mla_context_module", &rows);
    fake.latent("mla_generation_module", &rows);
    let tables = fake.tables("latent");
    assert_is(operator(&tables, &decodes(8, 64), "latent attention of decodes"), Source::Measured, 64.0);
    assert_is(operator(&tables, &prompts(&[(16, 0)]), "latent attention of prompts"), Source::Measured, 2.0);
    let total = |shape: &StepShape| tables.operators(shape).iter().map(|(_, priced)| priced.ns()).sum::<f64>();
    let shared: f64 = tables
        .operators(&decodes(8, 64))
        .iter()
        .filter(|(name, _)| name.starts_with("shared"))
        .map(|(_, priced)| priced.ns())
        .sum();
    // The routed experts take longer, so the shared experts add nothing to the step's time.
    let step = tables.price_step(&decodes(8, 64)).ns();
    assert!(shared > 0.0);
    assert_close(step, total(&decodes(8, 64)) - shared);
    // With prompts, shared and routed experts run one after the other.
    assert_close(tables.price_step(&prompts(&[(16, 0)])).ns(), total(&prompts(&[(16, 0)])));
}

#[test]
fn static_scales_cost_less_than_dynamic_ones() {
    let fake = Fake::with_tables();
    fake.gemm_of("fp8", "1.1", &[(8, 128, 64, 10.0), (8, 64, 64, 10.0)]);
    let scale = |file: &str, ms: f64| {
        use crate::common::{Column, write};
        let columns = [
            ("m", Column::Counts(vec![1, 16])),
            ("k", Column::Counts(vec![64, 64])),
            ("quant_dtype", Column::texts("fp8", 2)),
            ("latency", Column::Numbers(vec![ms, ms])),
        ];
        write(&fake.table("quantize", "1.0", file), &columns);
    };
    scale("computescale_perf", 3.0);
    scale("scale_matrix_perf", 2.0);
    let with = |dtype: &str| Tables::new(&TablesInput { gemm_dtype: Some(dtype.to_owned()), ..fake.input("dense") });
    let shape = decodes(8, 64);
    let (fixed, dynamic) = (with("fp8_static").unwrap(), with("fp8").unwrap());
    assert_close(ms(&dynamic, &shape, "qkv projection"), 20.0);
    assert_close(ms(&fixed, &shape, "qkv projection"), 14.0);
    // The attention's output already has FP8.
    assert_close(ms(&fixed, &shape, "output projection"), 10.0);
}
