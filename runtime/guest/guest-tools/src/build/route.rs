use std::fmt;

/// A method to compile for wasm32. Variants are in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The target is installed for the current toolchain.
    Installed,
    /// `rustup target add` installs the target.
    Rustup,
    /// The library is compiled together with the guest, from the current toolchain's source (`rust-src`).
    RustSrc,
    /// Debian's compiler and library source, in the cache directory. Like `RustSrc`, only for `no_std` guests.
    Debian,
}

impl Route {
    pub(crate) const ALL: [Self; 4] = [Self::Installed, Self::Rustup, Self::RustSrc, Self::Debian];

    /// The value of `VCR_GUEST_TOOLCHAIN` that selects the route.
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
