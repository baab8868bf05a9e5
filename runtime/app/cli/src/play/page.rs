//! The page of engines behind a frontend, at the control plane's address or its own.

use std::io;

use vcr_live::control::{LatencyReader, Listeners};
use vcr_live::{EnginesHandle, LiveConfig};

use super::args::LiveArgs;
use super::unusable::Unusable;
use crate::page::{PageParts, ServedPage};

pub(super) type Prepared = PageParts;

/// Prepares the page if an address serves it.
pub(super) fn prepare(live: &LiveArgs, config: &mut LiveConfig) -> Result<Option<Prepared>, Unusable> {
    if live.page.ui_address.is_none() && live.control.admin_address.is_none() {
        return Ok(None);
    }
    live.page.parts("play", None, config)
}

/// Serves the page at its own address, or by routes at the control plane's.
pub(super) fn serve(
    page: Option<Prepared>,
    listeners: Listeners,
    engines: &EnginesHandle,
    latency: &LatencyReader,
) -> io::Result<(Listeners, Option<ServedPage>)> {
    let Some(page) = page else { return Ok((listeners, None)) };
    let admin = listeners.admin_routes(engines.clone(), latency.clone());
    let (page, listener) = page.page("engines".to_owned(), engines.clone(), admin, false)?;
    match listener {
        None => Ok((listeners.with_page(Some(page.routes())), None)),
        Some(listener) => Ok((listeners, Some(ServedPage::start(page, listener)?))),
    }
}
