//! `vcr play` with real vLLM frontends.
//!
//! Each test runs with the frontends of all releases that have been fetched for it: [`FRONTENDS`], or all versions
//! if `VCR_ALL_VERSIONS` is set.

mod answers;
mod ends;
mod engines;
mod nixl;
mod options;
mod routers;

use serde_json::Value;
use vcr_tests::{Frontend, FrontendOptions, Play, releases};

/// Options that enable development routes, such as `/sleep`.
fn dev() -> FrontendOptions {
    FrontendOptions { env: vec![("VLLM_SERVER_DEV_MODE".to_owned(), "1".to_owned())], ..FrontendOptions::default() }
}

/// A frontend and its engines, which serve.
fn served(version: &str, options: &FrontendOptions, args: &[&str]) -> Option<(Frontend, Play)> {
    let mut frontend = Frontend::start(version, options)?;
    let mut all = vec!["--max-model-len", "4096"];
    let engines = options.engines.to_string();
    all.extend(["--data-parallel-size", &engines]);
    all.extend(args);
    let play = Play::start(&frontend.handshake_address(), &all);
    frontend.wait_until_it_serves();
    Some((frontend, play))
}

/// Runs a check with each release.
fn with_each(options: &FrontendOptions, args: &[&str], check: impl Fn(&str, &Frontend, &Play)) {
    for version in releases() {
        eprintln!("vLLM {version}");
        if let Some((frontend, play)) = served(version, options, args) {
            check(version, &frontend, &play);
        }
    }
}

/// Whether a release has this minor version or a later one.
fn is_from(version: &str, minor: u32) -> bool {
    version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()).expect("a version has parts") >= minor
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("a completion has a text")
}

fn scraped(address: &str) -> String {
    let response = ureq::get(format!("http://{address}/metrics")).call().expect("it is served");
    response.into_body().read_to_string().expect("it is text")
}

/// Sum of a metric over all engines.
fn sum_of(scraped: &str, name: &str) -> f64 {
    let values = scraped.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
