//! Messages: recorded, synthetic and invalid.

mod arbitrary;
mod garbage;
mod json;
mod recorded;
mod round_trips;
mod shapes;
mod versions;
