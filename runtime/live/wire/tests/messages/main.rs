//! The messages: recorded, synthetic, and broken.

mod arbitrary;
mod garbage;
mod json;
mod recorded;
mod round_trips;
mod shapes;
mod versions;
