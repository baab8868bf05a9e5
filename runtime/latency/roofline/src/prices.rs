//! List prices of GPUs at clouds.
//!
//! US dollars for one GPU and hour, on demand in the United States, without commitments, taxes, storage or traffic.
//! A node is divided by its GPUs, so the price includes their share of its processors and memory. Clouds change their
//! prices and grant discounts: state your own price where it matters.

use crate::presets;

/// The price of one GPU and hour on the list of a cloud.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListPrice {
    /// US dollars.
    pub usd_per_hour: f64,
    /// The cloud.
    pub provider: &'static str,
    /// Month of the list, `YYYY-MM`.
    pub date: &'static str,
}

/// The price of a node with this many GPUs.
const fn node(usd_per_hour: f64, gpus: f64, provider: &'static str, date: &'static str) -> Option<ListPrice> {
    Some(ListPrice { usd_per_hour: usd_per_hour / gpus, provider, date })
}

/// Every GPU of [`presets::GPU_NAMES`]; none where no list price is known.
pub const LIST_PRICES: &[(&str, Option<ListPrice>)] = &[
    // a2-highgpu-1g in us-central1.
    ("a100-40gb", node(3.67, 1.0, "Google Cloud", "2025-06")),
    ("a100-80gb", node(21.60, 8.0, "CoreWeave", "2026-02")),
    ("b200", node(68.80, 8.0, "CoreWeave", "2026-02")),
    ("b300", None),
    // A desktop computer.
    ("gb10", None),
    ("gb200", node(42.00, 4.0, "CoreWeave", "2026-02")),
    ("h100-sxm", node(49.24, 8.0, "CoreWeave", "2026-02")),
    ("h200-sxm", node(50.44, 8.0, "CoreWeave", "2026-02")),
    // g2-standard-4 in us-central1.
    ("l4", node(0.71, 1.0, "Google Cloud", "2025-06")),
    ("l40s", node(18.00, 8.0, "CoreWeave", "2026-02")),
    ("mi300x", node(48.00, 8.0, "Oracle Cloud", "2025-06")),
    // Secure cloud.
    ("rtx-4090", node(0.69, 1.0, "RunPod", "2025-06")),
];

/// The list price of a GPU, by any of its names; none if the GPU or its price is not known.
#[must_use]
pub fn list_price(gpu: &str) -> Option<ListPrice> {
    let gpu = presets::gpu_name(gpu)?;
    LIST_PRICES.iter().find(|(name, _)| *name == gpu).and_then(|(_, price)| *price)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_has_a_row() {
        let names = |table: &mut dyn Iterator<Item = &'static str>| table.collect::<alloc::vec::Vec<_>>();
        let priced = names(&mut LIST_PRICES.iter().map(|(name, _)| *name));
        assert_eq!(priced, names(&mut presets::GPU_NAMES.iter().map(|(name, _)| *name)));
        for price in LIST_PRICES.iter().filter_map(|(_, price)| *price) {
            assert!(price.usd_per_hour > 0.1 && price.usd_per_hour < 20.0, "{price:?}");
            assert!(price.date.len() == 7 && price.date.starts_with("20"), "{price:?}");
        }
    }

    #[test]
    fn a_price_is_found_by_any_name() {
        assert_eq!(list_price("NVIDIA H100 80GB HBM3").map(|price| price.usd_per_hour), Some(6.155));
        assert_eq!((list_price("gb10"), list_price("h900")), (None, None));
    }
}
