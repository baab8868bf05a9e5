//! Behaviour of hostile guests, and the host's reaction.

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
