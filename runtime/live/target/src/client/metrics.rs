//! Reads the metrics of servers that use vLLM's names.

use std::collections::BTreeMap;

/// Values of `vllm:*` metrics at one time. Totals are summed over labels; for usages, the maximum counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scrape {
    values: BTreeMap<&'static str, f64>,
}

/// Counters, without the suffix `_total`, which some servers omit.
const TOTALS: [&str; 3] = ["vllm:num_preemptions", "vllm:prefix_cache_hits", "vllm:prefix_cache_queries"];
/// Gauges between 0 and 1. The maximum over all engines counts.
const SHARES: [&str; 1] = ["vllm:kv_cache_usage_perc"];

impl Scrape {
    /// Parses Prometheus' text format. Other metrics are skipped.
    pub(crate) fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines().filter(|line| line.starts_with("vllm:")) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            // A label may contain spaces, and a timestamp may follow the value.
            let rest = line.rsplit_once('}').map_or(&line[name.len()..], |(_, rest)| rest);
            let value = rest.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
            let Some(value) = value.filter(|value| value.is_finite()) else { continue };
            let plain = name.strip_suffix("_total").unwrap_or(name);
            if let Some(name) = TOTALS.iter().find(|known| **known == plain) {
                *scrape.values.entry(name).or_insert(0.0) += value;
            } else if let Some(name) = SHARES.iter().find(|known| **known == name) {
                let most = scrape.values.entry(name).or_insert(0.0);
                *most = most.max(value);
            }
        }
        scrape
    }

    /// The growth of a counter since `before`. None if either value is missing, or the counter was reset.
    pub(crate) fn since(&self, before: &Self, name: &str) -> Option<u64> {
        let grown = self.values.get(name)? - before.values.get(name)?;
        (grown >= 0.0).then_some(grown.round() as u64)
    }

    /// The KV cache usage, from 0 to 1.
    pub(crate) fn kv_usage(&self) -> Option<f64> {
        self.values.get(SHARES[0]).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_summed_over_engines_and_usages_are_the_largest() {
        let before = Scrape::read("vllm:num_preemptions_total{engine=\"0\"} 2.0\nvllm:prefix_cache_hits_total 5\n");
        let after = Scrape::read(
            "# HELP vllm:num_preemptions_total x\nvllm:num_preemptions_total{engine=\"0\",model_name=\"a b}\"} 3.0\n\
             vllm:num_preemptions_total{engine=\"1\"} 4.0 1700000000\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
             vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\nvllm:prefix_cache_hits_total 4\nother{} 1\nvllm:bad{} x\n",
        );
        assert_eq!(after.since(&before, "vllm:num_preemptions"), Some(5));
        assert_eq!(after.since(&before, "vllm:prefix_cache_hits"), None, "the server was started again");
        assert_eq!(after.since(&before, "vllm:prefix_cache_queries"), None);
        assert_eq!((after.kv_usage(), before.kv_usage()), (Some(0.5), None));
    }
}
