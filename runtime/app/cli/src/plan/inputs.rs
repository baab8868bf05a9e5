//! The validated question of a plan.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vcr_base::units;
use vcr_model::vllm_args::{Deployment, VllmArgs};
use vcr_roofline::gpus::{GPUS, Gpu};

use crate::plan::args::QuestionArgs;
use crate::plan::load::{Load, absolute, quoted};
use crate::plan::objective::{Objective, contradiction};
use crate::plan::space::{Bounds, Space};
use crate::refusal::Refusal;

/// Default maximum number of GPUs.
const MAX_GPUS: u32 = 64;
/// Names of latency models; any other text is a file.
const LATENCIES: [&str; 2] = ["tables", "roofline"];
/// Source of a price given with `--price`.
const GIVEN: &str = "given";
/// Default multiples of the load for growth.
const SCALES: [f64; 6] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    pub(crate) bounds: Bounds,
    pub(crate) space: Space,
    pub(crate) load: Load,
    pub(crate) objectives: Vec<Objective>,
    /// The option `latency` of `deployment(...)`; none for the most accurate known model.
    pub(crate) latency: Option<String>,
    pub(crate) scales: Vec<f64>,
    pub(crate) seed: u64,
    /// Prices and their sources.
    pub(crate) prices: Vec<Price>,
    /// Assumptions of the answer, as sentences.
    pub(crate) assumptions: Vec<String>,
}

/// A price and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Price {
    pub(crate) gpu: String,
    pub(crate) usd_per_gpu_hour: f64,
    pub(crate) source: String,
}

impl Inputs {
    pub(crate) fn of(question: &QuestionArgs, space: Space) -> Result<Self, Refusal> {
        if question.model.is_empty() {
            return Err(Refusal::input("no model: expected --model")
                .hint("`vcr inspect model --list` has the names; a config.json works, too"));
        }
        if question.gpu.is_empty() {
            return Err(Refusal::input("no GPU: expected --gpu, such as h100-sxm,h200"));
        }
        if question.slo.is_empty() {
            return Err(Refusal::input("no objective: expected --slo, such as 'ttft.p95 < 2s'"));
        }
        let mut assumptions = Vec::new();
        let mut models: Vec<String> = Vec::new();
        for text in &question.model {
            let found = model_name(text)?;
            if found != *text && !Path::new(&found).is_absolute() {
                assumptions.push(format!("`{text}` is published as {found}"));
            }
            models.push(found);
        }
        if !space.prefill_decode.is_empty() {
            assumptions.push(format!(
                "prefill and decode engines are connected by a link of {} (`link` in --space)",
                space.link
            ));
        }
        let drafters = space.arguments.iter().filter_map(|arguments| unknown_drafter(models.first()?, arguments));
        assumptions.extend(drafters.map(|text| format!("{text}, so that its passes take no time")));
        let prices = prices(&question.gpu, &question.price)?;
        let objectives = Objective::all(&question.slo).map_err(Refusal::input)?;
        if let Some((one, other)) = contradiction(&objectives) {
            return Err(Refusal::input(format!(
                "invalid objectives: no run keeps both `{}` and `{}`",
                one.text(),
                other.text()
            )));
        }
        if let Some(one) = objectives.iter().find(|one| one.selects_class()) {
            return Err(Refusal::input(format!(
                "invalid objective `{}`: the requests of a plan have no SLO class: expected latency limits",
                one.text()
            ))
            .hint("such as 'goodput{ttft<1s,tpot<50ms}.ratio >= 95%'"));
        }
        let listed = prices.iter().filter(|price| price.source != GIVEN);
        let listed = listed.map(|price| format!("{} ${:.2} ({})", price.gpu, price.usd_per_gpu_hour, price.source));
        let listed: Vec<String> = listed.collect();
        if !listed.is_empty() {
            assumptions.push(format!("list prices of a GPU and hour (--price): {}", listed.join("; ")));
        }
        let scales = question.scale.iter().map(|text| scale(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            bounds: Bounds {
                models,
                gpus: prices.iter().map(|price| (price.gpu.clone(), price.usd_per_gpu_hour)).collect(),
                max_gpus: question.max_gpus.map_or(MAX_GPUS, std::num::NonZeroU32::get),
                gpus_per_node: question.gpus_per_node.map(std::num::NonZeroU32::get),
                max_model_len: question.max_model_len.map_or(0, std::num::NonZeroU32::get),
                vllm_minor: question.vllm_minor.clone(),
            },
            space,
            load: Load::of(question)?,
            objectives,
            latency: question.latency.as_deref().map(latency).transpose()?,
            scales: if scales.is_empty() { SCALES.to_vec() } else { scales },
            seed: question.seed.unwrap_or(1),
            prices,
            assumptions,
        })
    }

    /// Replaces the paths of all files that runs read by `of`.
    pub(crate) fn with_paths(&self, of: impl Fn(&Path) -> PathBuf) -> Result<Self, Refusal> {
        let mut moved = self.clone();
        if let Some(path) = moved.load.file_mut() {
            *path = of(path);
        }
        let fitted = moved.latency.as_mut().filter(|text| !LATENCIES.contains(&text.as_str()));
        if let Some(text) = fitted {
            *text = quoted(&of(Path::new(text)))?;
        }
        Ok(moved)
    }

    /// The files that runs read besides models.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut load = self.load.clone();
        let fitted = self.latency.as_deref().filter(|text| !LATENCIES.contains(text));
        load.file_mut().map(|path| path.clone()).into_iter().chain(fitted.map(PathBuf::from)).collect()
    }
}

/// The published name of a model, or the folder of its config.json.
pub(crate) fn model_name(text: &str) -> Result<String, Refusal> {
    let path = Path::new(text);
    let found = if path.file_name().is_some_and(|name| name == "config.json") && path.is_file() {
        quoted(absolute(path)?.parent().unwrap_or(Path::new("/")))?
    } else if path.is_dir() {
        quoted(&absolute(path)?)?
    } else if path.is_file() {
        return Err(Refusal::input(format!("invalid --model `{text}`: expected a file called config.json")));
    } else {
        published(text)
    };
    match vcr_model::Model::find(&found) {
        Ok(_) if !found.contains([' ', '"', '\\', '\'']) => Ok(found),
        Ok(_) => Err(Refusal::input(format!("invalid --model `{text}`: expected a path without blanks and quotes"))),
        Err(error) => Err(Refusal::input(format!("invalid --model: {error}"))),
    }
}

/// Finds a model in the table of models, if necessary ignoring its publisher; returns the table's name for it.
fn published(text: &str) -> String {
    let names = vcr_model::names_of(text);
    let is_same = |name: &&String| without_publisher(name).eq_ignore_ascii_case(without_publisher(text));
    let found = names.iter().find(|name| *name == text).or_else(|| names.iter().find(is_same));
    found.map_or(text, String::as_str).to_owned()
}

fn without_publisher(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// The prices of GPUs: as given, otherwise list prices.
fn prices(gpus: &[String], stated: &[String]) -> Result<Vec<Price>, Refusal> {
    let known = |text: &str| {
        Gpu::named(text).ok_or_else(|| {
            let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
            Refusal::input(format!("unknown GPU `{text}`: expected one of {}", names.join(", ")))
        })
    };
    let mut own = Vec::new();
    for text in stated {
        let price = text.split_once('=').and_then(|(gpu, price)| {
            let price: f64 = price.trim().trim_start_matches('$').parse().ok()?;
            (price.is_finite() && price > 0.0 && price < 1e6).then_some((gpu.trim(), price))
        });
        let (gpu, price) = price.ok_or_else(|| {
            Refusal::input(format!("invalid --price `{text}`: expected a GPU and US dollars an hour, such as h100=2.5"))
        })?;
        own.push((known(gpu)?.name, price));
    }
    let mut prices: Vec<Price> = Vec::new();
    for text in gpus {
        let gpu = known(text)?;
        if prices.iter().any(|price| price.gpu == gpu.name) {
            continue;
        }
        let stated = own.iter().find(|(name, _)| *name == gpu.name).map(|(_, price)| (*price, GIVEN.to_owned()));
        let listed = || {
            let price = gpu.price?;
            Some((price.usd_per_hour, format!("{}, {}", price.provider, price.date)))
        };
        let Some((usd_per_gpu_hour, source)) = stated.or_else(listed) else {
            let name = gpu.name;
            return Err(Refusal::input(format!("unknown price of `{name}`: expected --price {name}=PRICE")));
        };
        prices.push(Price { gpu: gpu.name.to_owned(), usd_per_gpu_hour, source });
    }
    match own.iter().find(|(name, _)| !prices.iter().any(|price| price.gpu == *name)) {
        Some((name, _)) => Err(Refusal::input(format!("--price of `{name}`, which is not among --gpu"))),
        None => Ok(prices),
    }
}

fn latency(text: &str) -> Result<String, Refusal> {
    match text {
        name if LATENCIES.contains(&name) => Ok(text.to_owned()),
        path if Path::new(path).is_file() => quoted(&absolute(Path::new(path))?),
        _ => Err(Refusal::input(format!(
            "invalid --latency `{text}`: expected tables, roofline, or a file that `vcr fit` has written"
        ))),
    }
}

fn scale(text: &str) -> Result<f64, Refusal> {
    let factor = units::number(text).ok().filter(|factor| (0.01..=100.0).contains(factor));
    factor.ok_or_else(|| Refusal::input(format!("invalid --scale `{text}`: expected a number from 0.01 to 100")))
}

/// Why the layers of a drafter in these arguments count for nothing, if they are unknown.
fn unknown_drafter(model: &str, arguments: &str) -> Option<String> {
    let deployment = Deployment { folder: Path::new(""), ..Deployment::default() };
    VllmArgs::read(&format!("vllm serve {model} {arguments}"), deployment).ok()?.unknown_drafter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> QuestionArgs {
        let texts = |text: &str| vec![text.to_owned()];
        QuestionArgs {
            model: texts("Qwen/Qwen3-8B"),
            gpu: texts("H100"),
            price: texts("h100-sxm=2.5"),
            rate: Some("2".to_owned()),
            prompt_tokens: Some("100".to_owned()),
            output_tokens: Some("50".to_owned()),
            slo: texts("ttft.p95 < 2s"),
            ..QuestionArgs::default()
        }
    }

    #[test]
    fn models_have_the_names_under_which_they_are_published() {
        assert_eq!(published("meta-llama/Llama-3.1-70B-Instruct-FP8"), "nvidia/Llama-3.1-70B-Instruct-FP8");
        assert_eq!(published("qwen3-8b"), "Qwen/Qwen3-8B");
        assert_eq!(published("meta-llama/Llama-3.1-70B-Instruct"), "meta-llama/Llama-3.1-70B-Instruct");
    }

    fn refusal(change: impl FnOnce(&mut QuestionArgs)) -> String {
        let mut asked = asked();
        change(&mut asked);
        Inputs::of(&asked, Space::default()).err().map(|refusal| refusal.message).unwrap_or_default()
    }

    #[test]
    fn questions_are_checked() {
        assert_eq!(refusal(|_| ()), "");
        let text = |text: &str| vec![text.to_owned()];
        assert!(refusal(|asked| asked.gpu = text("h101")).starts_with("unknown GPU `h101`: expected one of"));
        assert!(refusal(|asked| asked.price = text("h100=free")).starts_with("invalid --price"));
        assert!(refusal(|asked| asked.price = text("l4=1")).contains("not among --gpu"));
        assert!(refusal(|asked| asked.slo = Vec::new()).starts_with("no objective"));
        assert!(refusal(|asked| asked.rate = None).starts_with("no load"));
        assert!(refusal(|asked| asked.rate = Some("0".to_owned())).starts_with("invalid --rate"));
        assert!(refusal(|asked| asked.output_tokens = None).starts_with("no lengths"));
        assert!(refusal(|asked| asked.model = text("Qwen/Qwen3-9B")).starts_with("invalid --model"));
        assert!(refusal(|asked| asked.scale = text("0")).starts_with("invalid --scale"));
        assert!(refusal(|asked| asked.slo.push("ttft.p50 > 3s".to_owned())).starts_with("invalid objectives"));
        let of_class = refusal(|asked| asked.slo = text("goodput{ttft<1s, class: chat}.ratio >= 95%"));
        assert!(of_class.ends_with("no SLO class: expected latency limits"), "{of_class}");
    }
}
