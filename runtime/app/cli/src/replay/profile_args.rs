//! Options of `vcr replay` for playing agents' sessions in lanes.

use clap::Args;
use vcr_cluster::ProfileConfig;

/// Options of a profile.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Profile (plays of agents in lanes)")]
pub(crate) struct ProfileArgs {
    /// Play the trace in N lanes, and ignore arrival times. A lane has one play at a time (a session, or sessions that
    /// wait for each other), and takes the next play of the trace when that ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "replay_concurrency")]
    pub(crate) lanes: Option<u32>,

    /// Start the first play of each lane in the middle of the play, at a place drawn with this seed.
    #[arg(long, value_name = "SEED", requires = "lanes")]
    pub(crate) snapshot_seed: Option<u64>,

    /// Before the profile, each lane warms the caches: it sends the last request before its snapshot for each
    /// conversation that continues, and N of these requests again. They ask for one token and are not measured.
    #[arg(long, value_name = "N", default_value = "0", requires = "lanes")]
    pub(crate) warmup_requests: u32,

    /// Start requests for this long, and repeat the trace until then [default: run each play once].
    #[arg(long, value_name = "DURATION", requires = "lanes", value_parser = crate::values::time_limit)]
    pub(crate) profile_duration: Option<u64>,

    /// Wait for requests in flight for this long after the profile, then cancel them [default: cancel them at once].
    #[arg(long, value_name = "DURATION", requires = "profile_duration", value_parser = crate::values::time_limit)]
    pub(crate) profile_grace: Option<u64>,

    /// Longest time that a play waits without a request in flight [default: as recorded].
    #[arg(long, value_name = "DURATION", requires = "lanes", value_parser = crate::values::time_limit)]
    pub(crate) play_idle_cap: Option<u64>,

    /// Longest time that all plays together wait without a request in flight [default: as recorded].
    #[arg(long, value_name = "DURATION", requires = "lanes", value_parser = crate::values::time_limit)]
    pub(crate) idle_cap: Option<u64>,
}

impl ProfileArgs {
    /// The profile, if `--lanes` is given.
    pub(crate) fn config(&self, speedup: f64) -> Option<ProfileConfig> {
        Some(ProfileConfig {
            speedup,
            snapshot_seed: self.snapshot_seed,
            warmup_requests: self.warmup_requests,
            duration_ns: self.profile_duration,
            grace_ns: self.profile_grace.unwrap_or(0),
            play_idle_cap_ns: self.play_idle_cap,
            idle_cap_ns: self.idle_cap,
            ..ProfileConfig::new(self.lanes?)
        })
    }
}
