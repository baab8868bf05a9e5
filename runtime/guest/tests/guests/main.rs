//! What guests do to the host, and what the host makes of it.

mod answers;
mod built;
mod faults;
mod hostile;
mod loading;
mod observe;
mod policies;
mod roofline;
mod router;
mod scaler;
mod shipped;
mod tokens;
mod versions;
mod wasi;
mod wat_guest;
