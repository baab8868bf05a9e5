//! The bootstrap server of vLLM's Mooncake connector, which knows the workers of a prefill engine. llm-d's sidecar
//! queries it too.
//!
//! | | |
//! |---|---|
//! | `POST /register` | a worker registers: its engine, its ranks, its address |
//! | `GET /query` | all engines by data-parallel rank: `engine_id`, and addresses by tensor and pipeline rank |
//!
//! The field names are vLLM's. The engines of a process register themselves; other processes may register too.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::{ErrorKind, Meeting, TransferError};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::{Method, StatusCode};

use crate::bootstrap::http::send_request;
use crate::bootstrap::peer::{Place, Reply};
use crate::bootstrap::shared::{Inbox, Shared};
use crate::bootstrap::workers::{Registration, SCHEME, Table, decode_engines, place_of};

impl Shared {
    /// Registers an engine of this process whose rooms are at this port, unless it is registered already.
    pub(crate) fn register_with_mooncake(&self, rank: u16, engine_id: &str, port: u16) {
        let settings = &self.settings;
        let mut table = self.mooncake();
        for tp_rank in 0..settings.tensor_parallel_size {
            let addr = format!("{SCHEME}{}:{port}", settings.host);
            let registration =
                Registration { engine_id: engine_id.to_owned(), dp_rank: rank.into(), tp_rank, pp_rank: 0, addr };
            if let Err(error) = table.register(registration) {
                // The engine has served an earlier frontend, and its address is unchanged.
                tracing::debug!(rank, "the engine is registered already: {error}");
            }
        }
    }

    fn mooncake(&self) -> MutexGuard<'_, Table> {
        self.mooncake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn routes(shared: Arc<Shared>) -> Router {
    Router::new().route("/register", post(register)).route("/query", get(query)).with_state(shared)
}

fn refused(status: StatusCode, reason: impl Into<String>) -> Response {
    (status, axum::Json(BTreeMap::from([("detail", reason.into())]))).into_response()
}

async fn register(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let registration = match Registration::decode(&body) {
        Ok(registration) => registration,
        Err(error) => return refused(StatusCode::UNPROCESSABLE_ENTITY, format!("invalid registration: {error}")),
    };
    match place_of(&registration.addr) {
        Ok(place) if !shared.allows(&place.host) => {
            let message = format!("addr `{place}` is not an allowed KV peer (see --allow-remote-kv)");
            tracing::warn!("a worker is not registered: {message}");
            return refused(StatusCode::FORBIDDEN, message);
        }
        _ => {}
    }
    match shared.mooncake().register(registration) {
        Ok(()) => axum::Json(BTreeMap::from([("status", "ok")])).into_response(),
        Err(error) => refused(StatusCode::BAD_REQUEST, format!("invalid registration: {error}")),
    }
}

async fn query(State(shared): State<Arc<Shared>>) -> Response {
    axum::Json(&shared.mooncake().engines).into_response()
}

/// Asks a bootstrap server for the port of a room.
pub(crate) async fn find(inbox: &Inbox, meeting: &Meeting) -> Reply<Place> {
    let server = Place { host: meeting.host.clone(), port: meeting.port };
    let never = |kind, what: String| {
        Reply::Never(TransferError::new(kind, format!("KV rendezvous: the prefill worker at {server}: {what}")))
    };
    let engines = match send_request(&server, Method::GET, "/query", None).await {
        Reply::Answer(body) => match decode_engines(&body) {
            Ok(engines) => engines,
            Err(error) => return never(ErrorKind::Protocol, format!("its engines cannot be read: {error}")),
        },
        Reply::NotYet(why) => return Reply::NotYet(why),
        Reply::Never(error) => return Reply::Never(error),
    };
    let wanted = meeting.engine_id.as_deref().unwrap_or_default();
    let Some(engine) = engines.values().find(|engine| engine.engine_id == wanted) else {
        let there: Vec<_> = engines.values().take(8).map(|engine| format!("`{}`", engine.engine_id)).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Reply::NotYet(format!("engine `{wanted}` has not registered there; {there} has"));
    };
    let Some(address) = engine.worker_addr.get(&0).and_then(|workers| workers.get(&0)) else {
        return Reply::NotYet(format!("the first worker of engine `{wanted}` has not registered there"));
    };
    match place_of(address) {
        Ok(place) if !inbox.allows(&place.host) => {
            let host = place.host;
            let what = format!(
                "its engine `{wanted}` is at `{host}`, which is not an allowed KV peer (see --allow-remote-kv)"
            );
            never(ErrorKind::NotAllowed, what)
        }
        Ok(place) => Reply::Answer(place),
        Err(error) => never(ErrorKind::Protocol, error),
    }
}
