//! The LoRA adapters that an engine has loaded.

/// Adapters in the order of their last use, as vLLM's workers keep them.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    max_loaded: usize,
    /// Number of each adapter and whether it is pinned, the least recently used first.
    loaded: Vec<(u64, bool)>,
}

impl Adapters {
    /// Holds at most `max_loaded` adapters; 0 turns them off.
    pub(crate) fn new(max_loaded: u32) -> Self {
        Self { max_loaded: max_loaded as usize, loaded: Vec::new() }
    }

    /// Loads an adapter or marks it as used. Evicts the least recently used unpinned adapter if there is no room.
    pub(crate) fn load(&mut self, id: u64) -> Result<(), &'static str> {
        if self.max_loaded == 0 {
            return Err("LoRA is not enabled");
        }
        if let Some(at) = self.position(id) {
            let used = self.loaded.remove(at);
            self.loaded.push(used);
            return Ok(());
        }
        if self.loaded.len() >= self.max_loaded {
            let oldest = self.loaded.iter().position(|(_, pinned)| !pinned).ok_or("all adapters are pinned")?;
            self.loaded.remove(oldest);
        }
        self.loaded.push((id, false));
        Ok(())
    }

    /// Returns whether the adapter was loaded.
    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let at = self.position(id);
        if let Some(at) = at {
            self.loaded.remove(at);
        }
        at.is_some()
    }

    /// Protects an adapter from eviction.
    pub(crate) fn pin(&mut self, id: u64) -> Result<(), String> {
        let at = self.position(id).ok_or_else(|| format!("LoRA {id} is not registered"))?;
        self.loaded[at].1 = true;
        Ok(())
    }

    /// Numbers of loaded adapters, ascending.
    pub(crate) fn list(&self) -> Vec<u64> {
        let mut ids: Vec<_> = self.loaded.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.loaded.iter().position(|(other, _)| *other == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_makes_room_unless_it_is_pinned() {
        let mut adapters = Adapters::new(2);
        for id in [1, 2, 1] {
            adapters.load(id).expect("there is room");
        }
        adapters.pin(1).expect("it is loaded");
        adapters.load(3).expect("2 makes room");
        assert_eq!(adapters.list(), [1, 3]);
        adapters.load(4).expect("3 makes room, 1 is pinned");
        assert_eq!(adapters.list(), [1, 4]);
        assert!(adapters.remove(4) && !adapters.remove(4));
        assert!(adapters.pin(9).is_err());
        assert!(Adapters::new(0).load(1).is_err());
    }
}
