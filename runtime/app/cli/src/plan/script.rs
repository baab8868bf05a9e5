//! The scenario of a deployment with its load and objectives.

use crate::plan::inputs::Inputs;
use crate::plan::load::Cut;
use crate::plan::space::{Mode, Shape, has_drafts};
use crate::refusal::Refusal;
use crate::terminal::text::counted;

/// Name of every run. It is the same everywhere, so that rows and their scenarios have the same fingerprints.
const RUN: &str = "plan";

/// A deployment to simulate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case<'a> {
    pub(crate) shape: &'a Shape,
    /// Number of engines, or of groups of prefill and decode engines.
    pub(crate) replicas: u32,
    pub(crate) cut: Cut,
    /// Factor on the step times of the latency model.
    pub(crate) slower: f64,
}

impl Case<'_> {
    pub(crate) fn script(&self, inputs: &Inputs) -> Result<String, Refusal> {
        let workload = inputs.load.expression(self.cut)?;
        self.script_with(inputs, &workload, true)
    }

    /// The scenario with another workload. Without `judges` it has no objectives.
    pub(crate) fn script_with(&self, inputs: &Inputs, workload: &str, judges: bool) -> Result<String, Refusal> {
        let Self { shape, replicas, slower, .. } = self;
        let mut options = format!("gpu: \"{}\", price_per_hour: {:?}", shape.gpu, shape.price_per_gpu_hour);
        if let Some(latency) = &inputs.latency {
            options.push_str(&format!(", latency: \"{latency}\""));
        }
        if let Some(minor) = &inputs.bounds.vllm_minor {
            options.push_str(&format!(", vllm_minor: \"{minor}\""));
        }
        if let Some(node) = inputs.bounds.gpus_per_node {
            options.push_str(&format!(", gpus_per_node: {node}"));
        }
        if has_drafts(&shape.flags) {
            options.push_str(&format!(", acceptance_rates: {:?}", inputs.space.acceptance_rates));
        }
        let command = shape.simulated_command();
        let mut text = format!(
            "//! {}: {}.\n//! Claim: {}.\n\n",
            shape.family_text(),
            counted(shape.gpus() * replicas, "GPU"),
            inputs.objectives.iter().map(|one| one.text()).collect::<Vec<_>>().join(", "),
        );
        if shape.host_gib_per_gpu > 0 {
            text.push_str(&format!(
                "let plain = deployment(\"{command}\",\n    #{{ {options} }});\nlet block_bytes = \
                 plain.kv_bytes_per_token * plain.kv_tokens * 1.0 / plain.num_gpu_blocks;\nlet host = kv_tiers(#{{ \
                 host_blocks: ({}.0 * 1024.0 * 1024.0 * 1024.0 / block_bytes).to_int(),\n    kv_bytes_per_token: \
                 plain.kv_bytes_per_token }});\n",
                shape.host_gib_per_gpu
            ));
            options.push_str(", kv_tiers: host");
        }
        text.push_str(&format!("let deployed = deployment(\"{command}\",\n    #{{ {options} }});\n"));
        let router = &shape.router;
        let pool = |engines: u32, deployment: &str| {
            format!("pool(#{{ engines: {engines}, deployment: {deployment}, router: \"{router}\" }})")
        };
        let (pools, engines) = match shape.mode {
            Mode::Aggregated => (format!("engines: {}", pool(*replicas, "deployed")), vec![("engines", *replicas)]),
            Mode::Disaggregated { prefill, decode } => {
                let (prefill, decode) = (prefill * replicas, decode * replicas);
                // Each GPU sends its own part of the KV.
                let link = format!(
                    "link(#{{ bandwidth: \"{}\", kv_bytes_per_token: deployed.kv_bytes_per_token, \
                     sharing: \"per-prefill-engine\" }})",
                    shape.link
                );
                // Only prefill engines look prompts up in host memory.
                let decoding = if shape.host_gib_per_gpu > 0 { "plain" } else { "deployed" };
                let pools = format!(
                    "prefill: {},\n    decode: {},\n    link: {link}",
                    pool(prefill, "deployed"),
                    pool(decode, decoding)
                );
                (pools, vec![("prefill", prefill), ("decode", decode)])
            }
        };
        text.push_str(&format!("let served = cluster(#{{\n    {pools},\n}});\n"));
        if *slower != 1.0 {
            text.push_str("let slower = [];\n");
            for (pool, engines) in engines {
                text.push_str(&format!(
                    "for n in 0..{engines} {{ slower.push(slow_down(#{{ at: \"0s\", pool: \"{pool}\", engine: n, \
                     factor: {slower:?} }})); }}\n"
                ));
            }
        }
        let faults = if *slower == 1.0 { "" } else { ", faults: slower" };
        text.push_str(&format!(
            "let result = run(#{{\n    name: \"{RUN}\",\n    cluster: served,\n    workloads: [{workload}],\n    \
             seed: {}{faults},\n}});\n",
            inputs.seed
        ));
        if judges {
            for objective in &inputs.objectives {
                text.push_str(&format!("expect(result, \"{}\", \"{}\");\n", objective.subject, objective.condition));
            }
        }
        Ok(text)
    }
}
