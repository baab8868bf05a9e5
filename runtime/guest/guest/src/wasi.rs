//! The WASI interfaces that a user can grant; they behave identically in every run. Files and sockets are never
//! granted.

#[cfg(not(feature = "wasi"))]
mod absent;
#[cfg(feature = "wasi")]
mod host;

#[cfg(not(feature = "wasi"))]
pub(crate) use absent::{WasiState, link};
#[cfg(feature = "wasi")]
pub(crate) use host::{WasiState, link};

/// Maximum number of handles of an instance: streams and pollables.
pub(crate) const HANDLES_MAX: usize = 1024;

/// The WASI 0.2 interfaces that a guest is granted; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WasiGrants {
    /// `wasi:clocks`: both clocks show the time of the current call and do not advance within it. They show 0 before
    /// the first call, and always for token sources.
    pub clocks: bool,
    /// `wasi:random`, drawn from the instance's seed.
    pub random: bool,
    /// The standard streams: empty input, and output to the log.
    pub stdio: bool,
    /// `wasi:cli/environment`, which is empty, and `wasi:cli/exit`.
    pub environment: bool,
}

/// The grants by name, with their interfaces.
const GRANTS: [(&str, &[&str]); 4] = [
    ("clocks", &["wasi:clocks/wall-clock", "wasi:clocks/monotonic-clock", POLL]),
    ("random", &["wasi:random/random", "wasi:random/insecure", "wasi:random/insecure-seed"]),
    (
        "stdio",
        &[
            "wasi:cli/stdin",
            "wasi:cli/stdout",
            "wasi:cli/stderr",
            "wasi:cli/terminal-input",
            "wasi:cli/terminal-output",
            "wasi:cli/terminal-stdin",
            "wasi:cli/terminal-stdout",
            "wasi:cli/terminal-stderr",
            "wasi:io/error",
            "wasi:io/streams",
            POLL,
        ],
    ),
    ("environment", &["wasi:cli/environment", "wasi:cli/exit"]),
];

const POLL: &str = "wasi:io/poll";

impl WasiGrants {
    /// The names of all grants.
    #[must_use]
    pub fn names() -> [&'static str; 4] {
        GRANTS.map(|(name, _)| name)
    }

    /// All grants.
    #[must_use]
    pub fn all() -> Self {
        Self { clocks: true, random: true, stdio: true, environment: true }
    }

    /// Adds the grant called `name`; returns `false` if the name is unknown.
    pub fn grant(&mut self, name: &str) -> bool {
        match name {
            "clocks" => self.clocks = true,
            "random" => self.random = true,
            "stdio" => self.stdio = true,
            "environment" => self.environment = true,
            _ => return false,
        }
        true
    }

    fn has(self, name: &str) -> bool {
        match name {
            "clocks" => self.clocks,
            "random" => self.random,
            "stdio" => self.stdio,
            _ => self.environment,
        }
    }

    fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Whether an instance may import `import`, such as `wasi:clocks/wall-clock@0.2.6`.
    pub(crate) fn allows(self, import: &str) -> bool {
        granting(import).any(|name| self.has(name))
    }
}

/// The names of the grants that include `import`.
pub(crate) fn granting(import: &str) -> impl Iterator<Item = &'static str> {
    let interface = import.split_once('@').filter(|(_, version)| version.starts_with("0.2."));
    let interface = interface.map(|(interface, _)| interface.to_owned());
    let gives = move |interfaces: &[&str]| interface.as_ref().is_some_and(|it| interfaces.contains(&it.as_str()));
    GRANTS.into_iter().filter(move |(_, interfaces)| gives(interfaces)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grant_has_a_name_and_gives_its_interfaces() {
        for (name, interfaces) in GRANTS {
            let mut grants = WasiGrants::default();
            assert!(grants.grant(name), "{name}");
            for interface in interfaces {
                assert!(grants.allows(&format!("{interface}@0.2.3")), "{interface}");
                assert!(!grants.allows(&format!("{interface}@0.3.0")), "{interface}");
                assert!(!grants.allows(interface), "{interface}");
                assert!(!WasiGrants::default().allows(&format!("{interface}@0.2.3")), "{interface}");
            }
        }
        assert!(!WasiGrants::default().grant("filesystem"));
    }

    #[test]
    fn nothing_grants_files_and_sockets() {
        for import in ["wasi:filesystem/types@0.2.0", "wasi:sockets/tcp@0.2.0", "wasi:http/types@0.2.0", "other"] {
            assert_eq!(granting(import).count(), 0, "{import}");
        }
        assert_eq!(granting("wasi:io/poll@0.2.0").collect::<Vec<_>>(), ["clocks", "stdio"]);
    }
}
