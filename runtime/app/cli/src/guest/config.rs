//! Configs of guests on the command line.

use std::path::Path;

/// Reads a guest's config from an option: JSON, or the content of `@FILE`. The guest defines the fields.
#[cfg(feature = "live")]
pub(crate) fn guest_config(text: &str) -> Result<String, String> {
    match text.strip_prefix('@') {
        Some(name) => {
            let read = read_config(name)?;
            let checked = serde_json::from_str::<serde_json::Value>(&read);
            checked.map(|_| read).map_err(|error| format!("the config `{name}` is not JSON: {error}"))
        }
        None => Ok(text.to_owned()),
    }
}

pub(crate) fn read_config(name: &str) -> Result<String, String> {
    let read = vcr_base::input::read_text(Path::new(name), vcr_base::input::MAX_CONFIG_BYTES);
    read.map_err(|error| format!("cannot read the config `{name}`: {error}"))
}

#[cfg(all(test, feature = "live"))]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_the_text_or_the_content_of_a_file() {
        assert_eq!(guest_config("{\"a\": 1}"), Ok("{\"a\": 1}".to_owned()));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let error = guest_config(&format!("@{manifest}")).expect_err("it is TOML");
        assert!(error.contains("is not JSON"), "{error}");
        let error = guest_config("@no-such-file").expect_err("it is not there");
        assert!(error.starts_with("cannot read the config `no-such-file`"), "{error}");
        let error = guest_config("@/dev/zero").expect_err("it never ends");
        assert!(error.contains("it is a character device"), "{error}");
    }
}
