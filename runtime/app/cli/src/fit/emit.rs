//! `--emit-wasm`: writes the model as a guest component.

use std::io::Write;
use std::path::Path;

use vcr_base::output::OutputFile;
use vcr_fitted::ModelFile;
use vcr_guest::{GuestModule, Limits};
use vcr_guest_tools::build::Options;

use super::Refused;
use crate::exit::eprint_line;

/// Builds a guest with the model's step prices, and checks that the host accepts it.
pub(super) fn component(model: &ModelFile, path: &Path, file: OutputFile, quiet: bool) -> Result<(), Refused> {
    let other = |message: String| Refused::Other(message, None);
    let folder = tempfile::tempdir().map_err(|error| other(format!("cannot create a temporary folder: {error}")))?;
    let project = folder.path().join("fitted-model");
    let prices = serde_json::to_string(&model.step).expect("prices are JSON");
    vcr_guest_tools::template::create_fitted(&prices, &project).map_err(|error| other(error.to_string()))?;
    let failed = |error: vcr_guest_tools::build::BuildError| {
        let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
        other(format!("the component cannot be built: {error}{hint}"))
    };
    let options = Options::from_env().map_err(failed)?;
    let built = vcr_guest_tools::build::build(&project, &folder.path().join("dist"), &options, &mut |progress| {
        if !quiet && !matches!(progress, vcr_guest_tools::build::Progress::Cargo { .. }) {
            eprint_line(format_args!("{progress}"));
        }
    });
    let built = built.map_err(failed)?;
    GuestModule::load(&built.component, Limits::default()).map_err(|error| other(error.to_string()))?;
    let bytes = std::fs::read(&built.component);
    let bytes = bytes.map_err(|error| other(format!("cannot read the component of `{}`: {error}", path.display())))?;
    Ok(file.write_with(|out| out.write_all(&bytes))?)
}
