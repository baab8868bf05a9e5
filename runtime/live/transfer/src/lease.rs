//! Leases of finished prompts, whose blocks wait for readers.
//!
//! The notices are those of vLLM's NIXL connector: `REQUEST:READERS` from each reader after its read, and
//! `HB:REQUEST,REQUEST` from readers that still wait. Engines that move no bytes send only the request's ID.

use std::collections::{BTreeSet, HashMap};

/// A peer's notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// One of several readers has read a prompt.
    Read {
        /// ID of the request.
        request: &'a str,
        /// Total number of readers, if the notice states it.
        readers: Option<u32>,
    },
    /// Readers still wait for these prompts.
    Heartbeat(Vec<&'a str>),
    /// A reader asks, with this registration, for the blocks to be written.
    PushRegistration(&'a [u8]),
    /// Any other notice.
    Unknown,
}

/// Prefix of a heartbeat.
const HEARTBEAT: &str = "HB:";
/// Prefix of a push registration.
const PUSH_REGISTRATION: &[u8] = b"PUSH_REG:";
/// Maximum number of readers of a prompt; a notice with a larger number is invalid.
const MAX_READERS: u32 = 65_536;

impl<'a> Notice<'a> {
    /// Parses a notice.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Self {
        if let Some(registration) = bytes.strip_prefix(PUSH_REGISTRATION) {
            return Self::PushRegistration(registration);
        }
        let Ok(text) = std::str::from_utf8(bytes) else { return Self::Unknown };
        if let Some(requests) = text.strip_prefix(HEARTBEAT) {
            return Self::Heartbeat(requests.split(',').filter(|request| !request.is_empty()).collect());
        }
        if text.is_empty() {
            return Self::Unknown;
        }
        let counted = text.rsplit_once(':').and_then(|(request, count)| Some((request, count.parse().ok()?)));
        match counted {
            Some((request, readers)) if (1..=MAX_READERS).contains(&readers) => {
                Self::Read { request, readers: Some(readers) }
            }
            _ => Self::Read { request: text, readers: None },
        }
    }

    /// Encodes the notice of a read by one of `readers`.
    #[must_use]
    pub fn read(request: &str, readers: u32) -> Vec<u8> {
        format!("{request}:{readers}").into_bytes()
    }

    /// Encodes a heartbeat.
    #[must_use]
    pub fn heartbeat<'b>(requests: impl IntoIterator<Item = &'b str>) -> Vec<u8> {
        let requests: Vec<_> = requests.into_iter().collect();
        format!("{HEARTBEAT}{}", requests.join(",")).into_bytes()
    }

    /// Encodes a push registration.
    #[must_use]
    pub fn push_registration(registration: &[u8]) -> Vec<u8> {
        [PUSH_REGISTRATION, registration].concat()
    }
}

#[derive(Debug)]
struct Lease<T> {
    item: T,
    until_ns: u64,
    notices: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub enum NoticeEffect<T> {
    /// The last reader is done, so the blocks are free. The ID of the request, and the item of its lease.
    Released(String, T),
    /// More readers are expected.
    Counted,
    /// Number of leases that were extended.
    Extended(u32),
    /// The prompt is not held, or no longer: the notice is a duplicate, or the lease has ended.
    NotHeld,
    /// The notice does not concern leases.
    None,
}

/// Finished prompts by their requests' IDs, and the ends of their leases.
#[derive(Debug)]
pub struct LeaseTable<T> {
    leases: HashMap<String, Lease<T>>,
    /// End and request ID of each lease, earliest first.
    ends: BTreeSet<(u64, String)>,
    lease_ns: u64,
    extension_ns: u64,
}

impl<T> LeaseTable<T> {
    /// An empty table. Leases last `lease_ns` from their start, and at least `extension_ns` from each heartbeat.
    #[must_use]
    pub fn new(lease_ns: u64, extension_ns: u64) -> Self {
        Self { leases: HashMap::new(), ends: BTreeSet::new(), lease_ns, extension_ns }
    }

    /// Number of held prompts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no prompt is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Begins a lease. If this ID has a lease already, that ends, and its item is returned: its blocks are free.
    pub fn hold(&mut self, request: &str, item: T, now_ns: u64) -> Option<T> {
        let before = self.remove(request);
        let until_ns = now_ns.saturating_add(self.lease_ns);
        self.ends.insert((until_ns, request.to_owned()));
        self.leases.insert(request.to_owned(), Lease { item, until_ns, notices: 0 });
        before
    }

    /// The item of a held prompt.
    #[must_use]
    pub fn get(&self, request: &str) -> Option<&T> {
        self.leases.get(request).map(|lease| &lease.item)
    }

    /// Ends a lease and returns its item.
    pub fn remove(&mut self, request: &str) -> Option<T> {
        let (name, lease) = self.leases.remove_entry(request)?;
        self.ends.remove(&(lease.until_ns, name));
        Some(lease.item)
    }

    /// Ends all leases and returns their items, by request ID.
    pub fn remove_all(&mut self) -> Vec<(String, T)> {
        self.ends.clear();
        let mut all: Vec<_> = self.leases.drain().map(|(request, lease)| (request, lease.item)).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    /// Applies a notice of a peer.
    pub fn apply(&mut self, notice: &Notice<'_>, now_ns: u64) -> NoticeEffect<T> {
        match notice {
            Notice::Read { request, readers } => self.read(request, *readers),
            Notice::Heartbeat(requests) => {
                let until_ns = now_ns.saturating_add(self.extension_ns);
                let extended = requests.iter().filter(|request| self.extend(request, until_ns)).count();
                NoticeEffect::Extended(extended as u32)
            }
            Notice::PushRegistration(_) | Notice::Unknown => NoticeEffect::None,
        }
    }

    fn read(&mut self, request: &str, readers: Option<u32>) -> NoticeEffect<T> {
        // A request ID may end like a count.
        if let Some(readers) = readers {
            let whole = format!("{request}:{readers}");
            if !self.leases.contains_key(request) && self.leases.contains_key(&whole) {
                return self.read(&whole, None);
            }
        }
        let Some(lease) = self.leases.get_mut(request) else { return NoticeEffect::NotHeld };
        lease.notices += 1;
        if lease.notices < readers.unwrap_or(1) {
            return NoticeEffect::Counted;
        }
        match self.remove(request) {
            Some(item) => NoticeEffect::Released(request.to_owned(), item),
            None => NoticeEffect::NotHeld,
        }
    }

    /// Extends a lease; a heartbeat never shortens one.
    fn extend(&mut self, request: &str, until_ns: u64) -> bool {
        let Some(lease) = self.leases.get_mut(request) else { return false };
        if until_ns > lease.until_ns {
            self.ends.remove(&(lease.until_ns, request.to_owned()));
            lease.until_ns = until_ns;
            self.ends.insert((until_ns, request.to_owned()));
        }
        true
    }

    /// Ends the expired leases and returns their items, oldest first.
    pub fn expire(&mut self, now_ns: u64) -> Vec<(String, T)> {
        let mut expired = Vec::new();
        while self.ends.first().is_some_and(|(until_ns, _)| *until_ns <= now_ns) {
            let Some((_, request)) = self.ends.pop_first() else { break };
            if let Some(lease) = self.leases.remove(&request) {
                expired.push((request, lease.item));
            }
        }
        expired
    }

    /// When the next lease ends.
    #[must_use]
    pub fn next_end_ns(&self) -> Option<u64> {
        self.ends.first().map(|(until_ns, _)| *until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> LeaseTable<u32> {
        LeaseTable::new(30, 20)
    }

    #[test]
    fn a_notice_of_each_reader_frees_a_prompt_and_a_duplicate_does_nothing() {
        let mut table = table();
        assert_eq!(table.hold("a", 1, 0), None);
        let read = |table: &mut LeaseTable<u32>, text: &str| table.apply(&Notice::parse(text.as_bytes()), 5);
        assert_eq!(read(&mut table, "a:2"), NoticeEffect::Counted);
        assert_eq!(read(&mut table, "a:2"), NoticeEffect::Released("a".to_owned(), 1));
        assert_eq!(read(&mut table, "a:2"), NoticeEffect::NotHeld);
        assert_eq!((table.len(), table.next_end_ns()), (0, None));
    }

    #[test]
    fn names_may_have_colons() {
        let mut table = table();
        table.hold("a:7", 1, 0);
        table.hold("b:c", 2, 0);
        assert_eq!(
            table.apply(&Notice::parse(b"a:7"), 0),
            NoticeEffect::Released("a:7".to_owned(), 1),
            "the bare name"
        );
        assert_eq!(table.apply(&Notice::parse(b"b:c:1"), 0), NoticeEffect::Released("b:c".to_owned(), 2));
    }

    #[test]
    fn leases_end_unless_heartbeats_extend_them() {
        let mut table = table();
        table.hold("a", 1, 0);
        table.hold("b", 2, 1);
        assert_eq!(table.next_end_ns(), Some(30));
        assert_eq!(table.apply(&Notice::parse(b"HB:a,x,"), 25), NoticeEffect::Extended(1));
        assert_eq!(table.apply(&Notice::parse(b"HB:b"), 0), NoticeEffect::Extended(1), "it is not shortened");
        assert_eq!(table.expire(30), []);
        assert_eq!(table.expire(31), [("b".to_owned(), 2)]);
        assert_eq!(table.expire(45), [("a".to_owned(), 1)]);
    }

    #[test]
    fn notices_are_told_apart() {
        assert_eq!(Notice::parse(b"PUSH_REG:\xff"), Notice::PushRegistration(b"\xff"));
        assert_eq!(Notice::parse(b"\xff"), Notice::Unknown);
        assert_eq!(Notice::parse(b""), Notice::Unknown);
        assert_eq!(Notice::parse(b"a:0"), Notice::Read { request: "a:0", readers: None });
        assert_eq!(Notice::parse(&Notice::read("a", 3)), Notice::Read { request: "a", readers: Some(3) });
        assert_eq!(Notice::parse(&Notice::heartbeat(["a", "b"])), Notice::Heartbeat(vec!["a", "b"]));
    }

    #[test]
    fn a_name_that_is_used_again_frees_the_blocks_before() {
        let mut table = table();
        table.hold("a", 1, 0);
        assert_eq!(table.hold("a", 2, 10), Some(1));
        assert_eq!(table.expire(30), [], "the first lease is forgotten");
        assert_eq!(table.remove_all(), [("a".to_owned(), 2)]);
    }
}
