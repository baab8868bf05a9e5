//! Stand-in for the page in builds without a server.

use std::io;

use vcr_live::control::{LatencyReader, Listeners};
use vcr_live::{EnginesHandle, LiveConfig};

use super::args::LiveArgs;
use super::unusable::Unusable;

pub(super) type Prepared = ();

pub(super) fn prepare(_: &LiveArgs, _: &mut LiveConfig) -> Result<Option<Prepared>, Unusable> {
    Ok(None)
}

pub(super) fn serve(
    _: Option<Prepared>,
    listeners: Listeners,
    _: &EnginesHandle,
    _: &LatencyReader,
) -> io::Result<(Listeners, ())> {
    Ok((listeners, ()))
}
