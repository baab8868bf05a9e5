//! Makes manifests of this workspace independent of it.

/// Sections that only apply in this workspace.
const DROPPED: &[&str] = &["[dev-dependencies]", "[lints]"];

/// Replaces the settings inherited from the workspace with their values, and drops settings for tests.
pub(crate) fn alone(manifest: &str) -> String {
    let mut text = String::with_capacity(manifest.len());
    let mut is_kept = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_kept = !DROPPED.contains(&line);
        }
        if is_kept {
            text.push_str(&written_out(line));
            text.push('\n');
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn written_out(line: &str) -> String {
    let value = match line.strip_suffix(".workspace = true") {
        Some("version") => env!("CARGO_PKG_VERSION"),
        Some("rust-version") => env!("CARGO_PKG_RUST_VERSION"),
        Some("license") => env!("CARGO_PKG_LICENSE"),
        // Cargo does not pass the edition to crates.
        Some("edition") => "2024",
        _ => return line.to_owned(),
    };
    let key = line.trim_end_matches(".workspace = true");
    format!("{key} = \"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::embedded;

    #[test]
    fn manifests_that_stand_alone_inherit_nothing() {
        for manifest in [embedded::SDK_MANIFEST, embedded::HARNESS_MANIFEST, embedded::POLICY_MANIFEST] {
            let text = alone(manifest);
            assert!(!text.contains("workspace"), "{text}");
            assert!(text.contains("edition = \"2024\"\n") && text.contains("[dependencies]"), "{text}");
            assert!(!text.contains("dev-dependencies"), "{text}");
        }
        let workspace = include_str!("../../../../../Cargo.toml");
        assert!(workspace.contains("edition = \"2024\""), "what is written out is that of this workspace");
    }
}
