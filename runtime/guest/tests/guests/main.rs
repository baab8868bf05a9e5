//! What guests do to the host, and what the host makes of it.

mod built;
mod faults;
mod hostile;
mod loading;
mod roofline;
mod router;
mod shipped;
mod tokens;
mod wat_guest;
