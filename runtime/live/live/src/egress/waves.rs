//! Waves of a mixture of experts: while one engine has work, all of them must step.
//!
//! Real engines agree on the end of a wave by an all-reduce after every step. Engines of one process share the
//! current wave, and which engines have work.

use std::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Waves(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    current: u32,
    is_running: bool,
    step: u64,
    /// Whether each engine has work.
    has_work: Vec<bool>,
}

impl Waves {
    pub(crate) fn new(engines: usize) -> Self {
        Self(Mutex::new(State { has_work: vec![false; engines], ..State::default() }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic under this lock leaves the state consistent.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records a request for `engine`, whose frontend believes that the wave is `request_wave`. Returns the wave to
    /// announce, if any. From 0.33 on, engines start waves; before, they only correct frontends with an old wave.
    pub(crate) fn request(&self, engine: usize, request_wave: u32, engine_starts_waves: bool) -> Option<u32> {
        let mut state = self.state();
        state.has_work[engine] = true;
        let was_late = request_wave < state.current;
        state.current = state.current.max(request_wave);
        if state.is_running {
            return None;
        }
        state.is_running = true;
        (engine_starts_waves || was_late).then_some(state.current)
    }

    /// Starts a wave that the coordinator has announced to all engines except `exclude`.
    pub(crate) fn start(&self, engine: usize, wave: u32, exclude: Option<u32>) {
        let mut state = self.state();
        if exclude != Some(engine as u32) && wave >= state.current {
            state.current = wave;
            state.is_running = true;
        }
    }

    /// Records that `engine` has made a step and whether it still has work. Returns the completed wave if no engine
    /// has work left.
    pub(crate) fn stepped(&self, engine: usize, has_work: bool) -> Option<u32> {
        let mut state = self.state();
        state.step += 1;
        state.has_work[engine] = has_work;
        if !state.is_running || state.has_work.contains(&true) {
            return None;
        }
        state.is_running = false;
        state.step = 0;
        let complete = state.current;
        state.current += 1;
        Some(complete)
    }

    /// The current wave, and the number of steps in it.
    pub(crate) fn place(&self) -> crate::egress::stats::WavePlace {
        let state = self.state();
        crate::egress::stats::WavePlace { wave: state.current.into(), step: state.step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_is_complete_when_no_engine_has_work() {
        let waves = Waves::new(2);
        assert_eq!(waves.request(0, 0, true), Some(0));
        assert_eq!(waves.request(1, 0, true), None, "it is running");
        assert_eq!(waves.stepped(0, false), None, "the other one has work");
        assert_eq!(waves.stepped(1, false), Some(0));
        assert_eq!(waves.place().wave, 1);
        assert_eq!(waves.request(1, 0, false), Some(1), "the frontend was late");
        assert_eq!(waves.stepped(1, false), Some(1));
        assert_eq!(waves.request(1, 2, false), None, "the frontend starts it");
    }
}
