//! Options for tool arguments of the simulated model, named as in llm-d-inference-sim where it has them.

use clap::Args;
use vcr_text::tools::ArgumentSettings;

use super::chats::probability;
use crate::play::unusable::Unusable;

#[derive(Debug, Args)]
#[command(next_help_heading = "Arguments of tools")]
pub(crate) struct ArgumentArgs {
    /// Smallest integer argument if the tool's schema has no bound [default: 0].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min_tool_call_integer_param: Option<i32>,

    /// Largest integer argument if the tool's schema has no bound [default: 1000, or 100 with a minimum].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_tool_call_integer_param: Option<i32>,

    /// Smallest number argument if the tool's schema has no bound [default: 0].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min_tool_call_number_param: Option<f64>,

    /// Largest number argument if the tool's schema has no bound [default: 1000, or 100 with a minimum].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_tool_call_number_param: Option<f64>,

    /// Fewest items of an array argument if the tool's schema has no bound [default: 0, or 1 with a maximum].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    min_tool_call_array_param_length: Option<u32>,

    /// Most items of an array argument if the tool's schema has no bound [default: 3, or 5 with a minimum].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    max_tool_call_array_param_length: Option<u32>,

    /// Probability that a tool call has an optional argument [default: 0.5].
    #[arg(long, value_name = "P", value_parser = probability)]
    tool_call_not_required_param_probability: Option<f64>,

    /// Probability that an object argument has an optional field [default: 0.5].
    #[arg(long, value_name = "P", value_parser = probability)]
    object_tool_call_not_required_field_probability: Option<f64>,

    /// Probability of a further tool call after each call [default: 0.25, for at most one further call].
    #[arg(long, value_name = "P", value_parser = probability)]
    tool_call_extra_call_probability: Option<f64>,
}

impl ArgumentArgs {
    pub(crate) fn settings(&self) -> Result<ArgumentSettings, Unusable> {
        let (least, greatest) = (self.min_tool_call_integer_param, self.max_tool_call_integer_param);
        Ok(ArgumentSettings {
            integers: range("integer-param", least.map(f64::from), greatest.map(f64::from), (0.0, 100.0))?,
            numbers: range(
                "number-param",
                self.min_tool_call_number_param,
                self.max_tool_call_number_param,
                (0.0, 100.0),
            )?,
            array_items: range(
                "array-param-length",
                self.min_tool_call_array_param_length,
                self.max_tool_call_array_param_length,
                (1, 5),
            )?,
            optional_arguments: self.tool_call_not_required_param_probability,
            optional_fields: self.object_tool_call_not_required_field_probability,
            further_calls: self.tool_call_extra_call_probability,
        })
    }
}

/// The bounds, if at least one is given. The other one is then llm-d-inference-sim's default.
fn range<T: PartialOrd + Copy + std::fmt::Display>(
    name: &str,
    least: Option<T>,
    greatest: Option<T>,
    usual: (T, T),
) -> Result<Option<(T, T)>, Unusable> {
    if least.is_none() && greatest.is_none() {
        return Ok(None);
    }
    let (least, greatest) = (least.unwrap_or(usual.0), greatest.unwrap_or(usual.1));
    if least <= greatest {
        return Ok(Some((least, greatest)));
    }
    let message =
        format!("invalid --min-tool-call-{name} {least}: expected at most --max-tool-call-{name}, {greatest}");
    Err(Unusable::new(message))
}
