//! The rooms of a process, in which prompts wait for their decode engines, or decode engines for their prompts.
//!
//! The engines of the process share all rooms, so a decode engine finds its prompt whichever engine computed it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Description, Room};
use tokio::sync::oneshot;

/// Maximum number of rooms.
const MAX_ROOMS: usize = 65_536;

/// A finished prompt, and the engine that holds it.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// Rank of the engine.
    pub(crate) rank: u16,
    pub(crate) description: Description,
}

/// The answer to a waiting decode engine: the prompt, or why there is none.
pub(crate) type Answer = Result<Prompt, String>;

/// How a decode engine finds its room.
#[derive(Debug)]
pub(crate) enum Entered {
    /// The prompt was in the room already.
    Ready(Box<Prompt>),
    Waiting(oneshot::Receiver<Answer>),
}

#[derive(Debug)]
struct RoomState {
    /// Distinguishes this use of the room from others.
    number: u64,
    /// The engine that has got the room's request, once the request has arrived.
    rank: Option<u16>,
    prompt: Option<Prompt>,
    waiting: Option<oneshot::Sender<Answer>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RoomError {
    #[error("another decode engine waits in this room")]
    Taken,
    #[error("{MAX_ROOMS} rooms are in use")]
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    rooms: HashMap<Room, RoomState>,
    last_number: u64,
}

impl Table {
    fn room(&mut self, room: &Room) -> Result<&mut RoomState, RoomError> {
        if !self.rooms.contains_key(room) && self.rooms.len() >= MAX_ROOMS {
            return Err(RoomError::Full);
        }
        self.last_number += 1;
        let number = self.last_number;
        let new = || RoomState { number, rank: None, prompt: None, waiting: None };
        Ok(self.rooms.entry(room.clone()).or_insert_with(new))
    }
}

impl Rooms {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the request of a room has arrived at this engine.
    pub(crate) fn open(&self, room: &Room, rank: u16) -> Result<(), RoomError> {
        self.table().room(room)?.rank = Some(rank);
        Ok(())
    }

    /// The engine that has got the room's request.
    pub(crate) fn rank_of(&self, room: &Room) -> Option<u16> {
        self.table().rooms.get(room)?.rank
    }

    /// Gives a finished prompt to the decode engine that waits for it. If none waits, leaves the prompt in the
    /// room, and returns its number for [`Rooms::expire`] and the previous prompt in the room.
    pub(crate) fn complete(&self, room: &Room, prompt: Prompt) -> Result<(Option<u64>, Option<Prompt>), RoomError> {
        let mut table = self.table();
        let state = table.room(room)?;
        let prompt = match state.waiting.take() {
            None => prompt,
            Some(waiting) => match waiting.send(Ok(prompt)) {
                Ok(()) => {
                    table.rooms.remove(room);
                    return Ok((None, None));
                }
                // The waiting decode engine has disconnected.
                Err(Ok(prompt)) => prompt,
                Err(Err(_)) => return Ok((None, None)),
            },
        };
        table.last_number += 1;
        let number = table.last_number;
        let state = table.room(room)?;
        state.number = number;
        state.rank = Some(prompt.rank);
        Ok((Some(number), state.prompt.replace(prompt)))
    }

    /// Ends the wait in a room whose request has ended without a finished prompt.
    pub(crate) fn close(&self, room: &Room) {
        let mut table = self.table();
        if table.rooms.get(room).is_none_or(|state| state.prompt.is_some()) {
            return;
        }
        if let Some(waiting) = table.rooms.remove(room).and_then(|state| state.waiting) {
            _ = waiting.send(Err("the prefill engine's request ended before its prompt was finished".to_owned()));
        }
    }

    /// Takes the prompt for a decode engine, or lets the engine wait for it.
    pub(crate) fn enter(&self, room: &Room) -> Result<Entered, RoomError> {
        let mut table = self.table();
        let state = table.room(room)?;
        if let Some(prompt) = state.prompt.take() {
            table.rooms.remove(room);
            return Ok(Entered::Ready(Box::new(prompt)));
        }
        if state.waiting.as_ref().is_some_and(|waiting| !waiting.is_closed()) {
            return Err(RoomError::Taken);
        }
        let (sender, receiver) = oneshot::channel();
        state.waiting = Some(sender);
        Ok(Entered::Waiting(receiver))
    }

    /// Removes a decode engine that waited and has disconnected, and also the room if it is empty.
    pub(crate) fn leave(&self, room: &Room) {
        let mut table = self.table();
        let Some(state) = table.rooms.get_mut(room) else { return };
        if state.waiting.as_ref().is_some_and(oneshot::Sender::is_closed) {
            state.waiting = None;
        }
        if state.waiting.is_none() && state.prompt.is_none() && state.rank.is_none() {
            table.rooms.remove(room);
        }
    }

    /// Takes the prompt that [`Rooms::complete`] left with this number, if it is still in the room.
    pub(crate) fn expire(&self, room: &Room, number: u64) -> Option<Prompt> {
        let mut table = self.table();
        table.rooms.get(room).filter(|state| state.number == number && state.prompt.is_some())?;
        table.rooms.remove(room).and_then(|state| state.prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;

    fn prompt(request: &str) -> Prompt {
        let peer = Peer { host: "p".to_owned(), port: 1, engine_id: "e".to_owned(), generation: None };
        let description = Description { peer, request: request.to_owned(), blocks: vec![vec![1]], is_pushed: false };
        Prompt { rank: 3, description }
    }

    fn is_empty(rooms: &Rooms) -> bool {
        rooms.table().rooms.is_empty()
    }

    #[test]
    fn either_side_may_come_first() {
        let (rooms, room) = (Rooms::default(), Room::Number(7));
        rooms.open(&room, 3).expect("there is room");
        assert_eq!(rooms.rank_of(&room), Some(3));
        let (number, before) = rooms.complete(&room, prompt("a")).expect("there is room");
        assert!(number.is_some() && before.is_none());
        let Ok(Entered::Ready(got)) = rooms.enter(&room) else { panic!("the prompt is there") };
        assert_eq!((got.rank, &*got.description.request), (3, "a"));
        assert!(is_empty(&rooms));

        let Ok(Entered::Waiting(mut answer)) = rooms.enter(&room) else { panic!("no prompt is there") };
        assert_eq!(rooms.enter(&room).err(), Some(RoomError::Taken));
        rooms.open(&room, 3).expect("there is room");
        let (number, before) = rooms.complete(&room, prompt("b")).expect("there is room");
        assert!(number.is_none() && before.is_none());
        assert_eq!(answer.try_recv().expect("it has come").expect("it is finished").description.request, "b");
        assert!(is_empty(&rooms));
    }

    #[test]
    fn who_has_gone_is_not_served_and_leaves_nothing() {
        let (rooms, room) = (Rooms::default(), Room::Name("x".to_owned()));
        drop(rooms.enter(&room));
        rooms.leave(&room);
        assert!(is_empty(&rooms));
        let first = rooms.enter(&room);
        drop(first);
        assert!(matches!(rooms.enter(&room), Ok(Entered::Waiting(_))), "the place of the first is free");
        let (number, _) = rooms.complete(&room, prompt("a")).expect("there is room");
        let number = number.expect("no side waits");
        assert!(rooms.expire(&room, number + 1).is_none(), "another use of the room");
        assert_eq!(rooms.expire(&room, number).expect("it is there").description.request, "a");
        assert!(is_empty(&rooms));
    }

    #[test]
    fn a_request_that_ends_early_tells_who_waits() {
        let (rooms, room) = (Rooms::default(), Room::Number(1));
        rooms.open(&room, 0).expect("there is room");
        let Ok(Entered::Waiting(mut answer)) = rooms.enter(&room) else { panic!("no prompt is there") };
        rooms.close(&room);
        let error = answer.try_recv().expect("it is told").expect_err("there is none");
        assert!(error.contains("ended before its prompt was finished"), "{error}");
        assert!(is_empty(&rooms));
        let (number, _) = rooms.complete(&room, prompt("a")).expect("there is room");
        rooms.close(&room);
        assert!(rooms.expire(&room, number.expect("no side waits")).is_some(), "a finished prompt stays");
    }

    #[test]
    fn rooms_are_bounded() {
        let rooms = Rooms::default();
        for number in 0..MAX_ROOMS as u64 {
            rooms.open(&Room::Number(number), 0).expect("there is room");
        }
        assert_eq!(rooms.open(&Room::Number(u64::MAX), 0), Err(RoomError::Full));
        assert_eq!(rooms.enter(&Room::Number(u64::MAX)).err(), Some(RoomError::Full));
        assert!(rooms.enter(&Room::Number(5)).is_ok());
    }
}
