//! An environment for reinforcement learning: an agent chooses the engine of each request.

use vcr_cluster::{Cluster, ClusterError, ClusterOutput, ClusterRequest, PoolConfig, RunConfig, Topology};
use vcr_core::{EngineConfig, EngineConfigInput, factory::copies, seed};
use vcr_latency::{Polynomial, PolynomialInput};

/// Routes a request as the agent decides, and advances 40 ms. Action 0 chooses the engine with the longest cached
/// prefix, action 1 the least loaded engine. The state is the load of the engine with the longest cached prefix.
fn step(cluster: &mut Cluster, draw: u64, agent: &mut Agent) -> Result<(), ClusterError> {
    let mut prompt = cluster.empty_prompt();
    prompt.push_run(draw % 12, 0, 6_000); // One of twelve documents, then a question.
    prompt.push_run(draw, 0, 200);
    let load = |engine: u32| cluster.engines()[engine as usize].outstanding_prefill_tokens;
    let cached = (0..4).rev().max_by_key(|&engine| cluster.cached_blocks(engine, &prompt)).unwrap_or(0);
    let idle = (0..4).min_by_key(|&engine| load(engine)).unwrap_or(0);
    let state = (load(cached) / 4_000).min(7) as usize;
    let action = agent.act(state, draw >> 32);
    let request = ClusterRequest { prompt, max_tokens: 40, priority: 0, session: draw % 12 };
    cluster.submit_to([cached, idle][action], request)?;
    agent.tried.push((state, action, 0.0));
    cluster.step_until(cluster.now_ns() + 40_000_000, |output| agent.learn(output))
}

/// Learns the value of each action in each state.
#[derive(Default)]
struct Agent {
    values: [[f64; 2]; 8],
    /// The state, action and resulting end-to-end time in ms of each request.
    tried: Vec<(usize, usize, f64)>,
}

impl Agent {
    /// Returns the better action, but a random one in one case of five.
    fn act(&self, state: usize, draw: u64) -> usize {
        let [cache, load] = self.values[state];
        if draw.is_multiple_of(5) { draw as usize / 5 % 2 } else { usize::from(load > cache) }
    }

    fn learn(&mut self, output: &ClusterOutput) {
        let ClusterOutput::Ended { request, record } = output else { return };
        let (state, action, e2e_ms) = &mut self.tried[*request as usize];
        *e2e_ms = (record.end_ns.unwrap_or(0) - record.arrival_ns) as f64 / 1e6;
        self.values[*state][*action] += 0.1 * (-*e2e_ms - self.values[*state][*action]);
    }
}

pub(crate) fn main() {
    let engine = EngineConfig::new(EngineConfigInput::default()).expect("the defaults are valid");
    let model = Polynomial::new(PolynomialInput::default()).expect("the defaults are valid");
    let pool = PoolConfig::new("gpus", 4, engine, copies(model));
    let mut cluster = Cluster::new(RunConfig::new("episode", Topology::Aggregated(pool))).expect("it is valid");
    let mut agent = Agent::default();
    (0..2_000).for_each(|request| step(&mut cluster, seed::mix(request), &mut agent).expect("nothing fails"));
    cluster.run_to_end(|output| agent.learn(output)).expect("nothing fails");
    let mean_ms = |first: usize| agent.tried[first..first + 400].iter().map(|tried| tried.2).sum::<f64>() / 400.0;
    let [first_ms, last_ms] = [0, 1_600].map(mean_ms);
    println!("first {first_ms:.0} ms, last {last_ms:.0} ms");
    assert!(last_ms < first_ms, "nothing was learnt");
}
