//! SGLang's bootstrap server, which knows the ranks of a prefill worker, and which of them has got a room's request.
//!
//! | | |
//! |---|---|
//! | `PUT /route` | a rank registers: its place among the ranks, its address, its page size |
//! | `GET /route?prefill_dp_rank=-1&...` | numbers of ranks and the page size, once all have registered; 503 before |
//! | `GET /route?prefill_dp_rank=0&...` | the address of a rank; 404 if there is none |
//! | `POST /register_dp_rank` | a room's request has come to this data-parallel rank |
//! | `POST /query_dp_ranks` | the data-parallel ranks of rooms, as far as they are known |
//! | `GET /health` | OK |
//!
//! The field names are SGLang's. The engines of a process register themselves; other processes may register too.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::{ErrorKind, Meeting, Room, TransferError};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use crate::bootstrap::http::send_request;
use crate::bootstrap::peer::{Place, Reply};
use crate::bootstrap::ranks::{OwnRank, QUERY_KEYS, RankAddress, Registration, Table, WorkerInfo, decode_query};
use crate::bootstrap::shared::{Inbox, Shared};

impl Shared {
    /// Registers an engine of this process whose rooms are at this port.
    pub(crate) fn register_with_sglang(&self, rank: u16, port: u16) {
        let settings = &self.settings;
        for tp_rank in 0..settings.tensor_parallel_size {
            let registration = OwnRank {
                tp_rank,
                tp_size: settings.tensor_parallel_size,
                dp_rank: self.place_of(rank),
                dp_size: settings.num_ranks.into(),
                host: settings.host.clone(),
                port,
                block_tokens: settings.block_tokens,
            };
            if let Err(error) = self.sglang().register(registration.into()) {
                tracing::warn!(rank, "the engine is not registered with the bootstrap server: {error}");
            }
        }
    }

    fn place_of(&self, rank: u16) -> u32 {
        u32::from(rank.saturating_sub(self.settings.first_rank))
    }

    fn sglang(&self) -> MutexGuard<'_, Table> {
        self.sglang.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/route", get(get_route).put(put_route))
        .route("/register_dp_rank", post(register_dp_rank))
        .route("/query_dp_ranks", post(query_dp_ranks))
        .route("/health", get(|| async { "OK" }))
        .with_state(shared)
}

fn refused(status: StatusCode, reason: impl Into<String>) -> Response {
    (status, reason.into()).into_response()
}

async fn put_route(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let registration = match Registration::decode(&body) {
        Ok(registration) => registration,
        Err(error) => return refused(StatusCode::BAD_REQUEST, format!("invalid registration: {error}")),
    };
    if !shared.allows(&registration.rank_ip) {
        let message = format!("rank_ip `{}` is not an allowed KV peer (see --allow-remote-kv)", registration.rank_ip);
        tracing::warn!("a rank is not registered: {message}");
        return refused(StatusCode::FORBIDDEN, message);
    }
    match shared.sglang().register(registration) {
        Ok(()) => "OK".into_response(),
        Err(error) => refused(StatusCode::BAD_REQUEST, format!("invalid registration: {error}")),
    }
}

async fn get_route(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let place = match decode_query(&query.unwrap_or_default()) {
        Ok(place) => place,
        Err(error) => return refused(StatusCode::BAD_REQUEST, format!("invalid query of /route: {error}")),
    };
    let table = shared.sglang();
    let info = match table.ready() {
        Ok(info) => info,
        Err(reason) => return refused(StatusCode::SERVICE_UNAVAILABLE, reason),
    };
    if place == [-1; 4] {
        return axum::Json(info).into_response();
    }
    let place = place.map(|rank| u32::try_from(rank).unwrap_or(u32::MAX));
    match table.rank(place) {
        Some(address) => axum::Json(address).into_response(),
        None => {
            let [dp, cp, tp, pp] = place;
            refused(StatusCode::NOT_FOUND, format!("no rank with data {dp}, context {cp}, tensor {tp}, pipeline {pp}"))
        }
    }
}

#[derive(Debug, Deserialize)]
struct RoomOfRank {
    bootstrap_room: u64,
    dp_rank: u32,
}

async fn register_dp_rank(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let room: RoomOfRank = match serde_json::from_slice(&body) {
        Ok(room) => room,
        Err(error) => return refused(StatusCode::BAD_REQUEST, format!("invalid room: {error}")),
    };
    match shared.sglang().register_room(room.bootstrap_room, room.dp_rank, shared.settings.timeout) {
        Ok(()) => "OK".into_response(),
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, error),
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct RoomList {
    bootstrap_rooms: Vec<u64>,
}

async fn query_dp_ranks(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let list: RoomList = match serde_json::from_slice(&body) {
        Ok(list) => list,
        Err(error) => return refused(StatusCode::BAD_REQUEST, format!("invalid rooms: {error}")),
    };
    let rank_of = |room: u64| {
        let own = shared.rooms.rank_of(&Room::Number(room)).map(|rank| shared.place_of(rank));
        own.or_else(|| shared.sglang().rank_of_room(room))
    };
    let known = list.bootstrap_rooms.iter().filter_map(|room| Some((room.to_string(), rank_of(*room)?)));
    axum::Json(known.collect::<BTreeMap<_, _>>()).into_response()
}

/// Asks a bootstrap server for the port of a room.
pub(crate) async fn find(shared: &Shared, inbox: &Inbox, meeting: &Meeting) -> Reply<Place> {
    let Room::Number(room) = meeting.room else {
        let message = format!("KV rendezvous: {meeting}: expected a room with a number");
        return Reply::Never(TransferError::new(ErrorKind::Protocol, message));
    };
    let server = Place { host: meeting.host.clone(), port: meeting.port };
    let route = |place: [i64; 4]| {
        let pairs: Vec<_> = QUERY_KEYS.iter().zip(place).map(|(key, rank)| format!("{key}={rank}")).collect();
        format!("/route?{}", pairs.join("&"))
    };
    let never = |kind, what: String| {
        Reply::Never(TransferError::new(kind, format!("KV rendezvous: the prefill worker at {server}: {what}")))
    };
    let bad = |what: &str, error: String| never(ErrorKind::Protocol, format!("its {what} cannot be read: {error}"));
    let info = match send_request(&server, Method::GET, &route([-1; 4]), None).await {
        Reply::Answer(body) => match WorkerInfo::decode(&body) {
            Ok(info) => info,
            Err(error) => return bad("numbers of ranks", error),
        },
        Reply::NotYet(why) => return Reply::NotYet(why),
        Reply::Never(error) => return Reply::Never(error),
    };
    let block_tokens = shared.settings.block_tokens;
    if let Some(page_size) = info.page_size.filter(|page_size| *page_size != block_tokens) {
        let what = format!("its page_size is {page_size}, but a block has {block_tokens} tokens here (--block-size)");
        return never(ErrorKind::Mismatch, what);
    }
    let dp_rank = if info.follow_bootstrap_room {
        u32::try_from(room % u64::from(info.dp_size)).unwrap_or_default()
    } else {
        let list = serde_json::to_string(&RoomList { bootstrap_rooms: vec![room] }).unwrap_or_default();
        let ranks = match send_request(&server, Method::POST, "/query_dp_ranks", Some(list)).await {
            Reply::Answer(body) => match serde_json::from_slice::<BTreeMap<u64, u32>>(&body) {
                Ok(ranks) => ranks,
                Err(error) => return bad("ranks of rooms", error.to_string()),
            },
            Reply::NotYet(why) => return Reply::NotYet(why),
            Reply::Never(error) => return Reply::Never(error),
        };
        match ranks.get(&room) {
            Some(rank) => *rank,
            None => return Reply::NotYet("the request of the room has not come there".to_owned()),
        }
    };
    match send_request(&server, Method::GET, &route([dp_rank.into(), 0, 0, 0]), None).await {
        Reply::Answer(body) => match RankAddress::decode(&body) {
            Ok(address) if !inbox.allows(&address.rank_ip) => {
                let host = address.rank_ip;
                let what = format!(
                    "its rank {dp_rank} is at `{host}`, which is not an allowed KV peer (see --allow-remote-kv)"
                );
                never(ErrorKind::NotAllowed, what)
            }
            Ok(address) => Reply::Answer(Place { host: address.rank_ip, port: address.rank_port }),
            Err(error) => bad("address of a rank", error),
        },
        Reply::NotYet(why) => Reply::NotYet(why),
        Reply::Never(error) => Reply::Never(error),
    }
}
