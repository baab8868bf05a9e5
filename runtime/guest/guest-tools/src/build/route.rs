use std::fmt;

/// A method to compile for wasm32, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The target is installed for the current toolchain.
    Installed,
    /// `rustup target add` installs it.
    Rustup,
    /// The current toolchain has the source of its library (`rust-src`), which
    /// is compiled along with the guest.
    RustSrc,
    /// Debian's packages of a compiler and the source of its library, unpacked
    /// into the cache directory. Serves `no_std` guests only, as `RustSrc` does.
    Debian,
}

impl Route {
    pub(crate) const ALL: [Self; 4] = [Self::Installed, Self::Rustup, Self::RustSrc, Self::Debian];

    /// Its value of `VCR_GUEST_TOOLCHAIN`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Installed => "installed",
            Self::Rustup => "rustup",
            Self::RustSrc => "rust-src",
            Self::Debian => "debian",
        }
    }

    pub(crate) fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|route| route.name()).collect();
        format!("`auto`, `{}`", names.join("`, `"))
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
