//! The messages: as recorded, made up, and broken.

mod arbitrary;
mod garbage;
mod recorded;
mod round_trips;
mod shapes;
mod versions;
