//! What guests do to the host, and what the host makes of it.

mod hostile;
mod loading;
mod roofline;
mod wat_guest;
