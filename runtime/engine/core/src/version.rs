//! The simulated versions of vLLM, in one list.

use std::fmt;
use std::str::FromStr;

macro_rules! versions {
    ($declare:ident) => {
        $declare! {
            V0_27 = 27, "0.27";
            V0_28 = 28, "0.28";
            V0_29 = 29, "0.29";
            V0_30 = 30, "0.30";
            V0_31 = 31, "0.31";
            V0_32 = 32, "0.32";
            V0_33 = 33, "0.33";
        }
    };
}
pub(crate) use versions;

macro_rules! declare_versions {
    ($($version:ident = $minor:literal, $name:literal;)*) => {
        /// A version (minor release) of vLLM.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum VllmMinor {
            $(#[doc = $name] $version = $minor,)*
        }

        impl VllmMinor {
            /// All versions, oldest first.
            pub const ALL: [Self; [$($minor),*].len()] = [$(Self::$version),*];

            /// The name, such as `0.33`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$version => $name,)*
                }
            }
        }
    };
}

versions!(declare_versions);

impl VllmMinor {
    /// The oldest version.
    pub const OLDEST: Self = Self::ALL[0];
    /// The newest version, whose rules are the default.
    pub const NEWEST: Self = Self::ALL[Self::ALL.len() - 1];

    /// The number after `0.`.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Index among all versions.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.number() - Self::OLDEST.number()) as usize
    }
}

impl fmt::Display for VllmMinor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// An unknown version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid vLLM version \"{0}\": expected {oldest} to {newest}", oldest = VllmMinor::OLDEST, newest = VllmMinor::NEWEST)]
pub struct UnknownVersion(String);

impl FromStr for VllmMinor {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let found = Self::ALL.into_iter().find(|version| version.name() == text);
        found.ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart_by_name_and_number() {
        for (index, version) in VllmMinor::ALL.into_iter().enumerate() {
            assert_eq!(version.name().parse(), Ok(version));
            assert_eq!((version.index(), format!("0.{}", version.number())), (index, version.to_string()));
        }
        let error = "0.40".parse::<VllmMinor>().expect_err("it is not known").to_string();
        assert_eq!(error, "invalid vLLM version \"0.40\": expected 0.27 to 0.33");
    }
}
