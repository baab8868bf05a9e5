//! `fitted(#{ path: "model.json" })`: a latency model that `vcr fit` has fitted.

use std::path::Path;
use std::sync::Arc;

use vcr_cluster::Overheads;
use vcr_fitted::ModelFile;
use vcr_latency::{Fitted, FittedDraws};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::vocabulary::latency::{Draws, LatencySpec, finish};

/// Whether step times vary randomly around their means.
const NOISE: &[(&str, bool)] = &[("fitted", true), ("none", false)];

pub(super) fn make(context: &Context, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let path = options.string("path");
    let has_noise = options.choice("noise", NOISE).unwrap_or(true);
    options.required("path", path.as_ref().map(|_| ()));
    let spec = path
        .and_then(|path| of_path(context, &path, has_noise).map_err(|message| options.problem("path", message)).ok());
    finish(options, spec)
}

/// Reads the model of a file, which becomes an input of the scenario.
pub(crate) fn of_path(context: &Context, path: &str, has_noise: bool) -> Result<LatencySpec, String> {
    context.state().inputs.named("model", path, context.resolve(path));
    let path = context.resolve(path);
    context.reads(&path).map_err(|thrown| thrown.message)?;
    let model = read_model(&path)?;
    let certain = spec(&model, has_noise);
    let draws = FittedDraws::new(model)
        .map(|draws| -> Draws { Arc::new(move |draw_seed| spec(&draws.draw(draw_seed), has_noise)) });
    Ok(LatencySpec { draws, ..certain })
}

fn spec(model: &ModelFile, has_noise: bool) -> LatencySpec {
    let price = if has_noise { model.step } else { model.step.without_noise() };
    LatencySpec {
        overheads: Some(overheads(model)),
        ..LatencySpec::new(Arc::new(move |plugin_context| Ok(Box::new(Fitted::new(price, plugin_context.seed)))))
    }
}

/// The model's times outside of steps.
#[must_use]
pub fn overheads(model: &ModelFile) -> Overheads {
    let vcr_fitted::Overheads {
        arrival_ns,
        arrival_per_prompt_token_ps,
        first_token_ns,
        output_ns,
        prefill_launch_ns,
        large_launch_ns,
        launch_per_request_ns,
        launch_spread_permille,
    } = model.overheads;
    Overheads {
        arrival_ns,
        arrival_per_prompt_token_ps,
        first_token_ns,
        output_ns,
        prefill_launch_ns,
        large_launch_ns,
        launch_per_request_ns,
        launch_spread_permille,
    }
}

/// Reads a model file.
///
/// # Errors
/// A description of the problem that contains the file's name.
pub fn read_model(path: &Path) -> Result<ModelFile, String> {
    let text = vcr_base::input::read_text(path, vcr_base::input::MAX_CONFIG_BYTES)
        .map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    let model: ModelFile = serde_json::from_str(&text).map_err(|error| {
        format!("invalid model file `{}`: {error}; expected a file that `vcr fit` wrote", path.display())
    })?;
    model.check().map_err(|error| format!("invalid model file `{}`: {error}", path.display()))?;
    Ok(model)
}
