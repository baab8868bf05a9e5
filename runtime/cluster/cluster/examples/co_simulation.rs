//! A co-simulation driven by an external clock: a network simulator advances in ticks of 5 ms and carries requests
//! and answers.

use vcr_cluster::{Cluster, ClusterOutput, ClusterRequest, PoolConfig, RunConfig, Topology};
use vcr_core::{EngineConfig, EngineConfigInput, factory::copies};
use vcr_latency::{Polynomial, PolynomialInput};

const TICK_NS: u64 = 5_000_000;
const CLIENTS: u64 = 20;

/// The other simulator: it owns the clock.
struct Network {
    tick: u64,
    /// The arrival tick and the client of each message.
    to_cluster: Vec<(u64, u64)>,
    answers: u64,
}

impl Network {
    /// Takes the clients whose requests reach the cluster at this tick.
    fn due(&mut self) -> Vec<u64> {
        let tick = self.tick;
        self.to_cluster.extract_if(.., |(due, _)| *due <= tick).map(|(_, client)| client).collect()
    }

    /// Sends the client's next request after an answer, both delayed by the network.
    fn hear(&mut self, output: &ClusterOutput, client_of: &[u64]) {
        let ClusterOutput::Ended { request, .. } = output else { return };
        let client = client_of[*request as usize];
        self.answers += 1;
        self.to_cluster.push((self.tick + 3 + client % 4, client));
    }
}

pub(crate) fn main() {
    let engine = EngineConfig::new(EngineConfigInput::default()).expect("the defaults are valid");
    let model = Polynomial::new(PolynomialInput::default()).expect("the defaults are valid");
    let pool = PoolConfig::new("gpus", 2, engine, copies(model));
    let mut cluster = Cluster::new(RunConfig::new("co-simulation", Topology::Aggregated(pool))).expect("it is valid");
    let mut network = Network { to_cluster: (0..CLIENTS).map(|id| (id, id)).collect(), tick: 0, answers: 0 };
    let mut client_of: Vec<u64> = Vec::new();
    while network.tick < 2_000 {
        let now_ns = network.tick * TICK_NS;
        // Only requests that the cluster already has can reach an engine before the next tick.
        cluster.set_horizon_ns(Some(now_ns));
        let hear = |output: &ClusterOutput| network.hear(output, &client_of);
        cluster.step_until(now_ns, hear).expect("it is the next tick");
        for client in network.due() {
            let mut prompt = cluster.empty_prompt();
            prompt.push_run(client, 0, 500 + 10 * client as u32);
            let request = ClusterRequest { prompt, max_tokens: 30, priority: 0, session: client };
            cluster.submit(request).expect("the cluster is up");
            client_of.push(client);
        }
        network.tick += 1;
    }
    println!("{} answers in 10 s", network.answers);
    assert!(network.answers > CLIENTS * 5, "the clients go on");
}
