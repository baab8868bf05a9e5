//! Guests in the host, including hostile ones.

mod answers;
mod by_hand;
mod components;
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
mod wasi;
