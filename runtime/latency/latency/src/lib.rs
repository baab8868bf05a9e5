//! Native latency models: they price steps without a WebAssembly guest.
//!
//! | model | price of a step |
//! |---|---|
//! | [`Fitted`] | a sum of terms with coefficients that `vcr fit` found |
//! | [`Fixed`] | every step, or every prefill and decode part, costs the same |
//! | [`Knobs`] | first-token and inter-token times drawn from distributions |
//! | [`PerRequest`] | drawn first-token and inter-token times for each request, independent of other requests |
//! | [`Polynomial`] | Dynamo's default formula of new tokens and KV occupancy |
//! | [`Profile`] | interpolation between measured points of a planner profile |
//! | [`Physics`] | the limits of a roofline, weighted by fitted coefficients |
//! | [`Roofline`], [`LayeredRoofline`] | compute and memory limits of a transformer on a GPU |
//! | [`Sampled`] | recorded times of similar steps in a capture |
//!
//! Each model has a raw input with public fields and a checked model. Checking reports every problem at once and
//! repairs none.
//!
//! All results are deterministic. Doubles are only added, multiplied, divided and rounded, which IEEE 754 fixes to the
//! bit, and the few transcendental functions come from the `libm` crate, never from the platform. Nothing here reads a
//! clock or draws from a global random source. Only [`profile`] and [`tables`] read files.

mod duration;
mod fitted;
mod fixed;
mod knobs;
mod pass;
mod per_request;
mod physics;
mod polynomial;
mod problem;
pub mod profile;
mod roofline;
mod sampled;
mod speed;
pub mod tables;

pub use duration::STEP_NS_MAX;
pub use fitted::{Fitted, FittedDraws};
pub use fixed::{Fixed, FixedInput};
pub use knobs::{Knobs, KnobsInput};
pub use pass::{PassSemantics, WorkerPhases};
pub use per_request::PerRequest;
pub use physics::Physics;
pub use polynomial::{Polynomial, PolynomialInput};
pub use problem::{ConfigProblem, InvalidConfig};
pub use profile::{Deployment, Profile, ProfileInput};
pub use roofline::{LayeredRoofline, Roofline};
pub use sampled::{Sampled, SampledAnswer, SampledGrid};
pub use speed::SpeedInput;
