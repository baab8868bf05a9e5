use std::env;
use std::path::PathBuf;

use crate::build::error::BuildError;
use crate::build::route::Route;

/// Options of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The only method to use; `None` tries each in order.
    pub route: Option<Route>,
    /// Whether Debian's packages may be downloaded. Packages already downloaded are used in any case.
    pub bootstrap: bool,
    /// Folder of downloaded compilers. `None` means `$XDG_CACHE_HOME/vcr` or `~/.cache/vcr`.
    pub cache_dir: Option<PathBuf>,
}

impl Options {
    /// Options from `VCR_GUEST_TOOLCHAIN` (the name of a [`Route`], or `auto`)
    /// and `VCR_CACHE_DIR`.
    pub fn from_env() -> Result<Self, BuildError> {
        let route: Option<Route> = match env::var("VCR_GUEST_TOOLCHAIN") {
            Ok(value) => parse_route(&value)?,
            Err(_) => None,
        };
        // A user who names the Debian route permits the download of its compiler.
        let bootstrap = route == Some(Route::Debian);
        Ok(Self { route, bootstrap, cache_dir: env::var_os("VCR_CACHE_DIR").map(PathBuf::from) })
    }

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
            "invalid `VCR_GUEST_TOOLCHAIN` \"debain\": expected `auto`, `installed`, `rustup`, \
             `rust-src`, `debian`"
        );
    }
}
