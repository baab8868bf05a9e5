//! Families without a row, and the reasons.

use serde::Serialize;

use crate::plan::kept::{broken_text, kept};
use crate::plan::search::{Family, Found, Probe};
use crate::plan::simulate::Simulator;
use crate::terminal::text::counted;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FamilyResult {
    pub(crate) deployments: String,
    pub(crate) count: usize,
    /// `feasible`, `infeasible`, `dearer` or `unfinished`.
    pub(crate) result: &'static str,
    /// The fewest replicas that keep the objectives, that might keep them, or that are nearest to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replicas: Option<u32>,
    /// Price of these replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price_per_hour_usd: Option<f64>,
    /// The reason why the family has no row, with numbers.
    pub(crate) reason: String,
}

/// The result of a family. `first` is the price of the first row.
pub(crate) fn result(simulator: &Simulator<'_>, family: &Family, found: &Found, first: Option<f64>) -> FamilyResult {
    let with = |replicas: u32, part: usize| {
        let load = match simulator.parts[part] {
            Some(requests) => format!(" for the first {requests} requests alone"),
            None => String::new(),
        };
        format!("{}{load}", counted(replicas, "replica"))
    };
    let price = |replicas: u32| {
        let price = f64::from(replicas) * family.price;
        let more = first.map(|first| format!(", ${:.2} more than row 1", price - first));
        format!("${price:.2} an hour{}", more.unwrap_or_default())
    };
    let (result, replicas, reason) = match *found {
        Found::Least { replicas, .. } => {
            let with = with(replicas, simulator.whole());
            ("feasible", Some(replicas), format!("keeps the objectives with {with} for {}", price(replicas)))
        }
        Found::Infeasible { shape, replicas, part } => {
            let known = simulator.known(&Probe { shape, replicas, part });
            let known = known.map(|one| match &one.refused {
                Some(reason) => reason.clone(),
                None => kept(&one).iter().filter(|kept| !kept.passed).map(broken_text).collect::<Vec<_>>().join(", "),
            });
            let reason = format!("with {} {}", with(replicas, part), known.unwrap_or_default());
            ("infeasible", Some(replicas), reason)
        }
        Found::Dearer { shape, replicas, part } => {
            let is_known = simulator.known(&Probe { shape, replicas, part }).is_some();
            let how = if is_known { "" } else { " by arithmetic" };
            let reason = format!("needs at least {}{how}, {}", with(replicas, part), price(replicas));
            ("dearer", Some(replicas), reason)
        }
        Found::Unfinished => {
            let cause = simulator.cut_by().unwrap_or("the search");
            ("unfinished", None, format!("not decided before {cause} ended the search"))
        }
    };
    FamilyResult {
        deployments: simulator.shapes[family.shapes[0]].family_text(),
        count: family.shapes.len(),
        result,
        replicas,
        price_per_hour_usd: replicas.map(|replicas| f64::from(replicas) * family.price),
        reason,
    }
}
