//! The cheapest deployments for larger and smaller loads.

use serde::{Deserialize, Serialize};

use crate::plan::halt::{Halt, in_time};
use crate::plan::search::{Family, Found, search};
use crate::plan::simulate::Simulator;
use crate::plan::space::Shape;
use crate::refusal::Refusal;

/// Families that cost more than the first row by this factor are not tried for other loads.
const WITHIN: f64 = 2.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// The load, as a multiple of the plan's load.
    pub(crate) factor: f64,
    /// The deployment, with its family's best flags for this load; absent if even the most replicas are too few.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) deployment: Option<Shape>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) replicas: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) price_per_hour_usd: Option<f64>,
}

impl Growth {
    fn new(factor: f64, deployed: Option<(&Shape, u32)>) -> Self {
        Self {
            factor,
            deployment: deployed.map(|(shape, _)| shape.clone()),
            replicas: deployed.map(|(_, replicas)| replicas),
            gpus: deployed.map(|(shape, replicas)| replicas * shape.gpus()),
            price_per_hour_usd: deployed.map(|(shape, replicas)| f64::from(replicas) * shape.price()),
        }
    }
}

/// The cheapest deployment for each factor on the arrival rate. `first` is the answer for factor 1.
pub(crate) fn growth(
    simulator: &Simulator<'_>,
    families: &[Family],
    found: &[Found],
    first: (&Shape, u32),
) -> Result<Vec<Growth>, Refusal> {
    let price = first.0.price() * f64::from(first.1);
    let of = |factor: f64| -> Result<Growth, Halt> {
        if factor == 1.0 {
            return Ok(Growth::new(factor, Some(first)));
        }
        let simulator = simulator.with_load(factor);
        let all = families.iter().zip(found).filter_map(|(family, found)| candidate(family, found, factor, price));
        let families: Vec<Family> = all.collect();
        let mut found = Vec::new();
        search(&simulator, &families, simulator.parts.len(), &mut found)?;
        let least = families.iter().zip(&found).filter_map(|(family, found)| match *found {
            Found::Least { shape, replicas } => Some((family.price * f64::from(replicas), shape, replicas)),
            _ => None,
        });
        let least = least.min_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Growth::new(factor, least.map(|(_, shape, replicas)| (&simulator.shapes[shape], replicas))))
    };
    let all = simulator.each_of(&simulator.inputs.scales, |_, factor| in_time(of(*factor)));
    all.into_iter().filter_map(Result::transpose).collect()
}

/// The family as a candidate for a load with this factor, with its best flags for the plan's load.
fn candidate(family: &Family, found: &Found, factor: f64, price: f64) -> Option<Family> {
    let (shape, replicas) = match *found {
        Found::Least { shape, replicas } => (shape, replicas),
        Found::Dearer { shape, replicas, .. } if family.price * f64::from(replicas) <= price * WITHIN => {
            (shape, replicas)
        }
        // A smaller load may fit although the plan's load does not.
        Found::Infeasible { shape, replicas, .. } if factor < 1.0 => (shape, replicas),
        _ => return None,
    };
    let least = (f64::from(replicas) * factor).ceil() as u32;
    Some(Family { shapes: vec![shape], least: least.clamp(family.fewest, family.most), ..family.clone() })
}
