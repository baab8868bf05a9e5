use std::env;
use std::fmt;
use std::path::PathBuf;

use crate::error::BuildError;

/// A way to compile for wasm32, in the order of preference.
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

    /// The name that `VCR_GUEST_TOOLCHAIN` knows it by.
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

/// How to build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The one way to find a compiler; `None` tries each in order.
    pub route: Option<Route>,
    /// Where fetched compilers are kept. `None` means `$XDG_CACHE_HOME/vcr` or
    /// `~/.cache/vcr`.
    pub cache_dir: Option<PathBuf>,
}

impl Options {
    /// Options from `VCR_GUEST_TOOLCHAIN` (the name of a [`Route`], or `auto`)
    /// and `VCR_CACHE_DIR`.
    ///
    /// # Errors
    /// When `VCR_GUEST_TOOLCHAIN` names no route.
    pub fn from_env() -> Result<Self, BuildError> {
        let route = match env::var("VCR_GUEST_TOOLCHAIN") {
            Ok(value) => parse_route(&value)?,
            Err(_) => None,
        };
        Ok(Self { route, cache_dir: env::var_os("VCR_CACHE_DIR").map(PathBuf::from) })
    }

    /// The cache directory, if any is to be had.
    pub(crate) fn cache_dir(&self) -> Option<PathBuf> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.cache_dir
            .clone()
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("vcr")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/vcr")))
    }
}

fn parse_route(value: &str) -> Result<Option<Route>, BuildError> {
    if value.is_empty() || value == "auto" {
        return Ok(None);
    }
    Route::ALL
        .into_iter()
        .find(|route| route.name() == value)
        .map(Some)
        .ok_or_else(|| BuildError::UnknownRoute { value: value.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_known_by_name() {
        assert_eq!(parse_route("auto").expect("known"), None);
        for route in Route::ALL {
            assert_eq!(parse_route(route.name()).expect("known"), Some(route));
        }
        assert_eq!(
            parse_route("debain").expect_err("misspelt").to_string(),
            "`VCR_GUEST_TOOLCHAIN` is \"debain\", but must be `auto`, `installed`, `rustup`, \
             `rust-src`, `debian`"
        );
    }
}
