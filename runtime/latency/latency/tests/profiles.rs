//! Tests profiles: the three layouts, interpolation, and errors.

use ndarray::{Array1, Array2, array};
use ndarray_npy::NpzWriter;
use proptest::prelude::*;
use std::fs::File;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_latency::profile::{Column, DecodeSurface, Deployment, ProfileInput, ProfileTables, read};
use vcr_latency::{PassSemantics, Profile, SpeedInput, WorkerPhases};

fn sample(relative: &str) -> Option<PathBuf> {
    vcr_skips::sample(&format!("profiles/{relative}"))
}

fn write_grid(path: &Path, itl: &Array2<f64>) {
    let mut npz = NpzWriter::new(File::create(path).expect("a writable folder"));
    let add = |npz: &mut NpzWriter<File>, name: &str, values: &[f64]| {
        npz.add_array(name, &Array1::from_vec(values.to_vec())).expect("written");
    };
    add(&mut npz, "prefill_isl", &[100.0, 1100.0, 2100.0]);
    add(&mut npz, "prefill_ttft_ms", &[20.0, 40.0, 70.0]);
    add(&mut npz, "decode_active_kv_tokens", &[0.0, 1000.0, 3000.0]);
    add(&mut npz, "decode_context_length", &[100.0, 300.0]);
    npz.add_array("decode_itl", itl).expect("written");
    npz.finish().expect("written");
}

fn grid_itl() -> Array2<f64> {
    array![[4.0, 6.0], [8.0, 10.0], [8.0, 14.0]]
}

fn read_grid(itl: &Array2<f64>) -> Result<ProfileTables, String> {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("grid.npz");
    write_grid(&path, itl);
    read(&path, Deployment::Only).map_err(|error| error.to_string())
}

#[test]
fn a_grid_is_interpolated_and_continued() {
    let tables = read_grid(&grid_itl()).unwrap();
    for (tokens, ms) in [(100.0, 20.0), (600.0, 30.0), (1600.0, 55.0), (3100.0, 100.0)] {
        assert_eq!(tables.prefill.ttft_ms(tokens), ms);
    }
    assert_eq!(tables.prefill.ttft_ms(0.0), 18.0, "the first line continues");
    for (kv, context, ms) in [
        (0.0, 100.0, 4.0),
        (500.0, 200.0, 7.0),
        (2000.0, 300.0, 12.0),
        (4000.0, 300.0, 16.0),
        (1000.0, 500.0, 12.0),
        (0.0, 0.0, 3.0),
    ] {
        assert_eq!(tables.decode.itl_ms(kv, context), ms, "{kv} {context}");
    }
    // A falling line would cross zero.
    let falling = read_grid(&array![[9.0, 9.0], [5.0, 5.0], [1.0, 1.0]]).unwrap();
    assert_eq!(falling.decode.itl_ms(9000.0, 100.0), 0.0);
}

#[test]
fn arrays_stored_by_columns_read_the_same() {
    let mut by_columns = Array2::zeros(ndarray::ShapeBuilder::f((3, 2)));
    by_columns.assign(&grid_itl());
    assert_eq!(read_grid(&by_columns), read_grid(&grid_itl()));
}

#[test]
fn a_step_is_the_sum_of_its_parts() {
    let input = |semantics, speedup_ratio| ProfileInput {
        tables: read_grid(&grid_itl()).unwrap(),
        semantics,
        phases: WorkerPhases::Both,
        speculative: false,
        sums_contexts: false,
        speed: SpeedInput { speedup_ratio, decode_speedup_ratio: 2.0 },
    };
    let shape = StepShape {
        prefill_requests: 1,
        prefill_tokens: 600,
        prefill_completions: 1,
        prefill_completion_context_tokens: 600,
        decode_requests: 2,
        decode_tokens: 2,
        decode_context_tokens: 400,
        sampled_requests: 3,
        kv_active_blocks: 10,
        kv_total_blocks: 100,
        block_size_tokens: 100,
        ..StepShape::default()
    };
    let price = |input| {
        let mut durations_ns = Vec::new();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &[shape] };
        let mut model = Profile::new(input).unwrap();
        model.price(&batch, &mut durations_ns).unwrap();
        durations_ns[0]
    };
    // 1.6: 400 KV tokens at a mean of 200; (5.6 + 7.6) / 2 ms, halved.
    assert_eq!(price(input(PassSemantics::Dynamo1_6, 1.0)), 30_000_000 + 3_300_000);
    // 1.4: 10 blocks of 100 tokens, at a mean of 1000 / 3.
    let mean_context_ms = 8.0 + 2.0 * (1000.0 / 3.0 - 100.0) / 200.0;
    let decode_ns = (mean_context_ms / 2.0 * 1e6_f64).round() as u64;
    assert_eq!(price(input(PassSemantics::Dynamo1_4, 1.0)), 30_000_000 + decode_ns);
    assert!(Profile::new(input(PassSemantics::Dynamo1_4, -1.0)).is_err());
}

#[test]
fn problems_name_file_and_array() {
    let mut bad = grid_itl();
    bad[[1, 1]] = f64::NAN;
    let message = read_grid(&bad).unwrap_err();
    assert!(message.contains("grid.npz`: array `decode_itl` has the value NaN at index 3"), "{message}");
    let message = read_grid(&Array2::zeros((2, 2))).unwrap_err();
    assert!(message.contains("array `decode_itl` has shape [2, 2], but must"), "{message}");

    let dir = TempDir::new().unwrap();
    let only = |path: &Path| read(path, Deployment::Only).unwrap_err().to_string();
    assert!(only(dir.path()).contains("is not a planner profile"));
    let path = dir.path().join("prefill.npz");
    std::fs::write(&path, b"not a zip").unwrap();
    assert!(only(dir.path()).contains("prefill.npz` as .npz: "));
    let mut npz = NpzWriter::new(File::create(&path).unwrap());
    npz.add_array("prefill_isl", &array![5i64, 5]).unwrap();
    npz.add_array("prefill_ttft", &array![1.0f32, 2.0, 3.0]).unwrap();
    npz.finish().unwrap();
    let message = only(dir.path());
    for part in [
        "array `prefill_isl` must grow strictly, but 5 at index 1 follows 5",
        "array `prefill_ttft` has 3 values where 2 are expected (as in `prefill_isl`)",
    ] {
        assert!(message.contains(part), "{message}\nlacks {part}");
    }
    write_grid(&path, &grid_itl());
    assert!(only(dir.path()).contains("cannot open profile `"), "decode.npz is missing");
    std::fs::write(dir.path().join("decode.npz"), std::fs::read(&path).unwrap()).unwrap();
    assert!(read(dir.path(), Deployment::Only).is_ok());
}

#[test]
fn the_profiler_folder_is_the_same_profile_as_its_export() {
    let (Some(raw), Some(export)) = (sample("raw-h200-tp1"), sample("h200-llama-3.1-8b-fp8-tp1")) else {
        return;
    };
    let raw = read(&raw, Deployment::Only).unwrap();
    assert_eq!(read(&export, Deployment::TensorParallel(1)).unwrap(), raw);
    assert!((raw.prefill.ttft_ms(1117.0) - 38.494131).abs() < 1e-9);
    // A measured point: fraction 3.70359005e-04 of 945029 tokens at context 350.
    assert!((raw.decode.itl_ms(350.0, 350.0) - 4.379871).abs() < 1e-6);
    // The sweep ends at 0.58 of the cache, on a falling segment. A fuller cache must still not be faster.
    let end = raw.decode.itl_ms(550_000.0, 350.0);
    assert!(raw.decode.itl_ms(900_000.0, 350.0) > end);
}

#[test]
fn one_of_several_deployments_must_be_named() {
    let Some(path) = sample("h100-llama-3.3-70b-fp8") else {
        return;
    };
    let message = read(&path, Deployment::Only).unwrap_err().to_string();
    assert!(message.contains("holds 3 deployments (tensor-parallel sizes [8.0, 4.0, 2.0])"), "{message}");
    assert!(read(&path, Deployment::TensorParallel(16)).is_err());
    assert!(read(&path, Deployment::Row(3)).is_err());
    let tp4 = read(&path, Deployment::TensorParallel(4)).unwrap();
    assert_eq!(tp4, read(&path, Deployment::Row(1)).unwrap());
    assert!((tp4.prefill.ttft_ms(2135.0) - 132.464967).abs() < 1e-6);
}

fn column(name: &str, values: Vec<f64>) -> Column {
    let name = name.to_owned();
    Column { name, values }
}

#[test]
fn a_context_measured_once_borrows_a_slope() {
    let surface = |kv: &[f64], context: &[f64], itl: &[f64]| {
        DecodeSurface::swept(
            column("kv", kv.to_vec()),
            column("context", context.to_vec()),
            column("itl", itl.to_vec()),
        )
    };
    let sweep = surface(&[30.0, 20.0, 10.0, 50.0], &[1.0, 1.0, 1.0, 2.0], &[7.0, 9.0, 3.0, 20.0]).unwrap();
    assert_eq!(sweep.itl_ms(15.0, 1.0), 6.0);
    assert_eq!(sweep.itl_ms(40.0, 1.0), 9.0, "the mean slope is 0.2");
    assert_eq!(sweep.itl_ms(60.0, 2.0), 22.0);
    assert_eq!(sweep.itl_ms(50.0, 1.5), 15.5);
    let twice = surface(&[1.0, 1.0], &[2.0, 2.0], &[1.0, 3.0]).unwrap_err();
    assert!(twice[0].to_string().contains("measures context length 2 at 1 KV tokens twice"));
    let single = surface(&[1.0, 2.0], &[1.0, 2.0], &[1.0, 3.0]).unwrap_err();
    assert!(single[0].to_string().contains("no context length"));
}

proptest! {
    // The tests have no library root, next to which failing cases are usually stored.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No query may give a negative or undefined time, at any distance from the points.
    #[test]
    fn times_are_never_negative(
        points in proptest::collection::vec((0.0f64..1e6, 0u8..4, 0.0f64..100.0), 2..30),
        kv in 0.0f64..1e9,
        context in 0.0f64..1e6,
    ) {
        let sweep = DecodeSurface::swept(
            column("kv", points.iter().map(|p| p.0).collect()),
            column("context", points.iter().map(|p| f64::from(p.1) * 500.0).collect()),
            column("itl", points.iter().map(|p| p.2).collect()),
        );
        if let Ok(sweep) = sweep {
            let ms = sweep.itl_ms(kv, context);
            prop_assert!(ms.is_finite() && ms >= 0.0, "{ms}");
        }
    }
}
