//! Steps of the engine core on the clock of the latency model, and their outputs.

pub(crate) mod output;
pub(crate) mod results;
pub(crate) mod stepper;
pub(crate) mod turns;
pub(crate) mod watch;
