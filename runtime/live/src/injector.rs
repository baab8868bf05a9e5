//! What a guest that injects failures is told, and what it wants.

use vcr_core::fault::{FaultBatch, FaultEvent};

use crate::error::LiveError;
use crate::faults::Asked;
use crate::server::Server;

/// Something to tell, with its own texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Arrived { slot: u32, request_id: String, prompt_tokens: u32, max_tokens: u32, priority: i32, lora: Option<u32> },
    Emitted { slot: u32, output_tokens: u32 },
    Ended { slot: u32 },
    Utility { method: String },
}

impl Happened {
    fn event(&self) -> FaultEvent<'_> {
        match *self {
            Self::Arrived { slot, ref request_id, prompt_tokens, max_tokens, priority, lora } => {
                FaultEvent::Arrived { slot, request_id, prompt_tokens, max_tokens, priority, lora }
            }
            Self::Emitted { slot, output_tokens } => FaultEvent::Emitted { slot, output_tokens },
            Self::Ended { slot } => FaultEvent::Ended { slot },
            Self::Utility { ref method } => FaultEvent::Utility { method },
        }
    }
}

impl Server {
    /// Tells the guest what has happened since the last call, and does what it
    /// wants.
    pub(crate) fn ask_injector(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let Some(injector) = self.injector.as_mut().filter(|_| !self.happened.is_empty()) else { return Ok(()) };
        let since_start_ns = now_ns.saturating_sub(self.origin_ns);
        let happened = std::mem::take(&mut self.happened);
        let events: Vec<_> = happened.iter().map(Happened::event).collect();
        let mut actions = Vec::new();
        let batch = FaultBatch { now_ns: since_start_ns, step: self.counters.steps, events: &events };
        injector.decide(&batch, &mut actions)?;
        for action in actions {
            match self.faults.ask(action, since_start_ns) {
                None => {}
                Some(Asked::Engine(due)) => self.suffer(due, now_ns)?,
                Some(Asked::FailRequest { slot }) => self.fail_slot(slot, now_ns)?,
            }
        }
        Ok(())
    }
}
