//! The Python package: the wheel in a clean environment, and the package's own tests with readers of its tables,
//! with Jupyter, and on a Ray cluster. `python/build.sh --install` builds and installs the wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

use vcr_tests::{Client, Folder, Said, browser, client, root, shipped_guest, skip, vcr};

/// Path of the wheel. `None`, with a message, if it has not been built, or was built from other sources.
fn wheel() -> Option<PathBuf> {
    const HINT: &str = "python/build.sh --install builds the wheel of the Python package";
    let built = std::fs::read_dir(root().join("target/wheels")).into_iter().flatten().flatten();
    let found = built.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "whl"));
    let Some(wheel) = found else {
        skip(HINT);
        return None;
    };
    let modified = |path: &Path| path.metadata().and_then(|of| of.modified()).expect("a file has a time");
    if modified(&wheel) < modified(vcr()) {
        let version = Said::of(Command::new(vcr()).arg("--version")).ended(0).stdout;
        eprintln!("the wheel is older than the binary ({}); {HINT}", version.trim());
    }
    Some(wheel)
}

/// Environment with the wheel and other packages.
fn environment(name: &str) -> Option<Client> {
    wheel()?;
    client(name)
}

/// Runs files of the package's tests in an environment.
fn pytest(name: &str, files: &[&str]) {
    // The guest shows that this is the main job.
    if wheel().is_some() && shipped_guest("roofline").is_some() {
        pytest_without_wheel(name, files);
    }
}

/// Like [`pytest`], but for files that do not import the package.
fn pytest_without_wheel(name: &str, files: &[&str]) {
    let Some(client) = client(name) else { return };
    let folder = root().join("python/tests");
    let mut command = client.python(&["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]);
    command.args(files).current_dir(folder).env("VCR_BINARY", vcr()).env("PYTHONDONTWRITEBYTECODE", "1");
    _ = Said::of(&mut command).ended(0);
}

#[test]
fn the_wheel_runs_the_main_job_in_a_clean_environment() {
    let Some(wheel) = wheel() else { return };
    if shipped_guest("roofline").is_none() {
        return;
    }
    let bytes = wheel.metadata().expect("it is there").len();
    assert!(bytes < 40_000_000, "the wheel has {bytes} bytes");
    let folder = Folder::new();
    let mut venv = Command::new("python3");
    _ = Said::of(venv.args(["-m", "venv", "clean"]).current_dir(folder.path())).ended(0);
    let bin = folder.path().join("clean/bin");
    let mut install = Command::new(bin.join("pip"));
    install.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(&wheel);
    _ = Said::of(&mut install).ended(0);
    let scenario = root().join("scenarios/pd_burst.rhai");
    let expected = Said::of(Command::new(vcr()).arg("run").arg(&scenario).arg("--json")).ended(0);
    // Run the scenario with the console script, and in process.
    let script = Said::of(Command::new(bin.join("vcr")).arg("run").arg(&scenario).arg("--json")).ended(0);
    assert_eq!(script.stdout, expected.stdout);
    let code = "import sys, vcr; sys.stdout.write(vcr.run(sys.argv[1]).to_json())";
    let in_process = Said::of(Command::new(bin.join("python")).args(["-c", code]).arg(&scenario)).ended(0);
    assert_eq!(in_process.stdout, expected.stdout);
    // The package contains this scenario, with its guest and its trace.
    let code = "import sys, vcr; sys.stdout.write(vcr.run('pd_burst').to_json())";
    let shipped = Said::of(Command::new(bin.join("python")).args(["-c", code]).current_dir(folder.path())).ended(0);
    assert_eq!(shipped.stdout, expected.stdout);
    // The package's metadata names its licence file.
    let code = "import importlib.metadata as of\nprint(of.metadata('vcr').get_all('License-File'))";
    let licences = Said::of(Command::new(bin.join("python")).args(["-c", code])).ended(0);
    assert!(licences.stdout.contains("'LICENSE'"), "{}", licences.stdout);
    // A function that needs a missing package names that package.
    let code = "import vcr\ntry: vcr.run(sys.argv[1]).requests.to_polars()\nexcept ImportError as error: print(error)";
    let mut missing = Command::new(bin.join("python"));
    let said = Said::of(missing.args(["-c", &format!("import sys\n{code}")]).arg(&scenario)).ended(0);
    assert_eq!(said.stdout.trim(), "this needs polars: pip install polars");
    let sweep = ["--sweep", "burst=1,2", "--on", "auto"];
    let mut on_ray = Command::new(bin.join("vcr"));
    let said = Said::of(on_ray.arg("run").arg(&scenario).args(sweep));
    said.failed(2, &["this needs ray: pip install 'ray[client]'"]);
}

#[test]
fn runs_are_those_of_the_binary() {
    pytest("python", &["test_run.py"]);
}

#[test]
fn tables_are_those_of_the_binary() {
    pytest("python", &["test_tables.py"]);
}

#[test]
fn scenarios_are_built_from_values() {
    pytest("python", &["test_scenario.py"]);
}

#[test]
fn types_are_those_of_the_module() {
    pytest("python", &["test_types.py"]);
}

#[test]
fn code_of_the_documentation_runs() {
    pytest("python", &["test_docs.py"]);
}

#[test]
fn the_driver_of_sweeps_hands_out_points_in_order() {
    pytest("python", &["test_ray_driver.py"]);
}

#[test]
fn inputs_and_outputs_may_be_at_urls() {
    pytest("python", &["test_urls.py"]);
}

#[test]
fn the_pytest_plugin_starts_servers_and_plays_cassettes() {
    pytest_without_wheel("python", &["test_pytest_plugin.py"]);
}

#[test]
fn the_notebook_runs() {
    pytest("python", &["test_notebook.py"]);
}

/// A notebook shows the report in a sandboxed frame, which allows less than a page of its own.
#[test]
fn a_report_in_a_notebook_draws_its_charts() {
    let (Some(python), Some(browser)) = (environment("python"), browser()) else { return };
    let folder = Folder::new();
    let code = "import sys, vcr; sys.stdout.write(vcr.run(sys.argv[1], charts=True)._repr_html_())";
    let scenario = root().join("scenarios/failure_drill.rhai");
    let said = Said::of(python.python(&["-c", code]).arg(&scenario)).ended(0);
    let page = folder.write("output.html", format!("<!doctype html><meta charset=utf-8><body>{}", said.stdout));
    let seen = browser.report("frame.py", &[&page.display().to_string()]);
    assert_eq!((seen["errors"].to_string(), seen["requests"].to_string()), ("[]".to_owned(), "[]".to_owned()));
    let charts = seen["charts"].as_array().expect("a list");
    // The charts show distributions, and engines over time.
    assert!(charts.len() > 8, "{charts:?}");
    for chart in charts {
        assert!(chart["painted"].as_u64().is_some_and(|pixels| pixels > 1_000), "{chart}");
    }
    assert!(seen["assertions"].as_u64().is_some_and(|rows| rows > 2), "{seen}");
}

#[test]
fn sweeps_on_ray_have_the_bytes_of_one_machine() {
    pytest("ray", &["test_ray.py"]);
}
