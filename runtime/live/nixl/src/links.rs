//! Peers: their metadata, which is requested once, and their agents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vcr_transfer::{ErrorKind, Geometry, Peer, TransferError};
use vcr_wire::{MetadataRequest, NixlAgentMetadata, NixlQuery, Transport};

use crate::NixlSettings;
use crate::agent::NixlAgent;
use crate::layout::{RemoteLayout, peer_metadata};

/// Time limit of an answer, as in vLLM.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of ranks of an engine.
const MAX_RANKS: u32 = 1024;

/// Address of a side channel.
pub(crate) type Place = (String, u16);

pub(crate) fn place_of(peer: &Peer) -> Place {
    (peer.host.clone(), peer.port)
}

pub(crate) fn name_of((host, port): &Place) -> String {
    format!("{host}:{port}")
}

/// A peer whose memory can be read.
#[derive(Debug)]
pub(crate) struct Link {
    /// NIXL's name of the peer's agent.
    pub(crate) agent: String,
    pub(crate) layout: RemoteLayout,
    engine_id: String,
    generation: Option<u64>,
    /// Time that it took to connect.
    connect_ns: u64,
    is_new: bool,
}

impl Link {
    /// Whether this is the engine that `peer` names, with the same generation.
    fn is_of(&self, peer: &Peer) -> bool {
        let is_engine = peer.engine_id.is_empty() || peer.engine_id == self.engine_id;
        let is_start = match (peer.generation, self.generation) {
            (Some(wanted), Some(found)) => wanted == found,
            _ => true,
        };
        is_engine && is_start
    }

    /// Time spent on the connection; 0 except for the first transfer over it.
    pub(crate) fn take_connect_ns(&mut self) -> u64 {
        if std::mem::take(&mut self.is_new) { self.connect_ns } else { 0 }
    }
}

/// Queries that are not all answered.
struct Asking {
    since: Instant,
    /// The answer of each rank, or the query that the rank has not answered.
    ranks: Vec<Result<NixlAgentMetadata, MetadataRequest>>,
}

enum State {
    Asking(Asking),
    Ready(Link),
}

/// The known facts about a peer.
pub(crate) enum Look<'a> {
    /// The peer can be used.
    Ready(&'a mut Link),
    /// The peer has been asked for its metadata.
    Asked,
    /// The peer cannot be used.
    Failed(TransferError),
}

pub(crate) struct Links {
    settings: Arc<NixlSettings>,
    transport: Transport,
    geometry: Geometry,
    states: HashMap<Place, State>,
}

impl Links {
    pub(crate) fn new(settings: Arc<NixlSettings>, transport: Transport, geometry: Geometry) -> Self {
        Self { settings, transport, geometry, states: HashMap::new() }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.states.values().any(|state| matches!(state, State::Asking(_)))
    }

    /// Returns a known peer, or asks the peer for its metadata.
    pub(crate) fn look(&mut self, peer: &Peer, agent: &mut NixlAgent) -> Look<'_> {
        let place = place_of(peer);
        // Another process may have this address by now.
        let is_other = matches!(self.states.get(&place), Some(State::Ready(link)) if !link.is_of(peer));
        if is_other {
            self.forget(&place, agent);
        }
        if !self.states.contains_key(&place) {
            match self.ask(&place, 0) {
                Ok(question) => {
                    let asking = Asking { since: Instant::now(), ranks: vec![Err(question)] };
                    self.states.insert(place.clone(), State::Asking(asking));
                }
                Err(error) => return Look::Failed(error),
            }
        }
        match self.states.get_mut(&place) {
            Some(State::Ready(link)) => Look::Ready(link),
            _ => Look::Asked,
        }
    }

    /// The peer that has answered, if it is the wanted one.
    pub(crate) fn found(&mut self, peer: &Peer) -> Result<&mut Link, TransferError> {
        let Some(State::Ready(link)) = self.states.get_mut(&place_of(peer)) else {
            return Err(TransferError::new(ErrorKind::PeerLost, format!("KV peer {peer} disconnected")));
        };
        if link.is_of(peer) {
            return Ok(link);
        }
        let name = peer.to_string();
        let message = if !peer.engine_id.is_empty() && peer.engine_id != link.engine_id {
            format!("KV peer {name} is engine {}, not {}", link.engine_id, peer.engine_id)
        } else {
            format!("KV peer {name} has been restarted since it computed the prompt")
        };
        Err(TransferError::new(ErrorKind::Restarted, message))
    }

    pub(crate) fn forget(&mut self, place: &Place, agent: &mut NixlAgent) {
        if let Some(State::Ready(link)) = self.states.remove(place) {
            agent.remove_peer(&link.agent);
        }
    }

    /// Takes answers. Returns the peers that have answered or whose time is over.
    pub(crate) fn poll(&mut self, agent: &mut NixlAgent) -> Vec<(Place, Result<(), TransferError>)> {
        let asked = self.states.iter().filter(|(_, state)| matches!(state, State::Asking(_)));
        let asked: Vec<Place> = asked.map(|(place, _)| place.clone()).collect();
        let mut settled = Vec::new();
        for place in asked {
            let outcome = match self.advance(&place, agent) {
                Ok(false) => continue,
                Ok(true) => Ok(()),
                Err(error) => {
                    self.states.remove(&place);
                    Err(error)
                }
            };
            settled.push((place, outcome));
        }
        settled
    }

    fn ask(&self, place: &Place, tp_rank: u32) -> Result<MetadataRequest, TransferError> {
        let (host, port) = place;
        let address = format!("tcp://{host}:{port}");
        MetadataRequest::send(&self.transport, &address, NixlQuery { pp_rank: 0, tp_rank })
            .map_err(|error| TransferError::new(ErrorKind::Unreachable, format!("KV peer {}: {error}", name_of(place))))
    }

    /// Takes the answers of one peer. Returns whether the peer can be used now.
    fn advance(&mut self, place: &Place, agent: &mut NixlAgent) -> Result<bool, TransferError> {
        let name = name_of(place);
        let Some(State::Asking(asking)) = self.states.get_mut(place) else { return Ok(false) };
        for rank in &mut asking.ranks {
            let Err(question) = rank else { continue };
            let answer = question.try_receive();
            let answer = answer.map_err(|error| TransferError::new(ErrorKind::Local, error.to_string()))?;
            if let Some(answer) = answer {
                *rank = Ok(peer_metadata(&self.settings, &name, &answer)?);
            }
        }
        let since = asking.since;
        let Some(Ok(first)) = asking.ranks.first() else { return waited(since, &name) };
        let num_ranks = if first.vcr_ranks == 0 { self.geometry.ranks() } else { first.vcr_ranks };
        if num_ranks > MAX_RANKS {
            let message = format!("KV peer {name}: {num_ranks} ranks, expected at most {MAX_RANKS}");
            return Err(TransferError::new(ErrorKind::Protocol, message));
        }
        let known = asking.ranks.len() as u32;
        let more: Result<Vec<_>, _> = (known..num_ranks).map(|rank| self.ask(place, rank).map(Err)).collect();
        let Some(State::Asking(asking)) = self.states.get_mut(place) else { return Ok(false) };
        asking.ranks.extend(more?);
        let answers: Option<Vec<_>> = asking.ranks.iter().map(|rank| rank.as_ref().ok()).collect();
        let Some(answers) = answers else { return waited(since, &name) };
        let answers: Vec<_> = answers.into_iter().cloned().collect();
        let layout = RemoteLayout::new(&self.geometry, &name, &answers)?;
        let link = connect(&name, &answers, layout, since, agent)?;
        self.states.insert(place.clone(), State::Ready(link));
        Ok(true)
    }
}

fn waited(since: Instant, name: &str) -> Result<bool, TransferError> {
    if since.elapsed() < ANSWER_TIMEOUT {
        return Ok(false);
    }
    let message =
        format!("KV peer {name} did not answer within {} s: is its side channel there?", ANSWER_TIMEOUT.as_secs());
    Err(TransferError::new(ErrorKind::Unreachable, message))
}

/// Adds the agents of all ranks. The ranks of a vcr engine share one agent.
fn connect(
    name: &str,
    ranks: &[NixlAgentMetadata],
    layout: RemoteLayout,
    since: Instant,
    agent: &mut NixlAgent,
) -> Result<Link, TransferError> {
    let refused = |reason: String| TransferError::new(ErrorKind::Protocol, format!("KV peer {name}: {reason}"));
    let first = &ranks[0];
    if let Some(other) = ranks.iter().find(|other| other.agent_metadata != first.agent_metadata) {
        let reason = if other.vcr_ranks == 0 { "an agent for each tensor-parallel rank" } else { "several agents" };
        return Err(TransferError::new(
            ErrorKind::Mismatch,
            format!("KV peer {name} has {reason}; vcr reads engines with one agent"),
        ));
    }
    let added = agent.add_peer(&first.agent_metadata.0);
    let peer = added.map_err(|error| refused(format!("NIXL does not accept its agent: {error}")))?;
    Ok(Link {
        agent: peer,
        layout,
        engine_id: first.engine_id.clone(),
        generation: first.vcr_generation,
        connect_ns: since.elapsed().as_nanos() as u64,
        is_new: true,
    })
}
