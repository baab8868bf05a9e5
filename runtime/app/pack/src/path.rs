//! Paths in packs.

use std::path::{Component, Path, PathBuf};

use crate::error::PackError;

/// Longest path in a pack.
const MAX_PATH_BYTES: usize = 1024;

/// Folder for inputs whose location relative to the scenario cannot be kept.
const ELSEWHERE: &str = "elsewhere";

/// Largest number of levels from the scenario's folder up to the common folder of all files.
const MAX_LEVELS_UP: usize = 3;

/// Checks that a path in a pack stays inside the pack on every system.
pub fn check_path(path: &str) -> Result<(), PackError> {
    let is_plain = |name: &str| {
        !name.is_empty() && name != "." && name != ".." && !name.contains(['\\', '\0', ':']) && name.trim() == name
    };
    if path.len() <= MAX_PATH_BYTES && !path.contains(char::is_control) && path.split('/').all(is_plain) {
        Ok(())
    } else {
        Err(PackError::Path(path.to_owned()))
    }
}

/// Chooses the paths of a scenario (absolute, without links) and its inputs, named as in the script, in a pack.
///
/// Relative locations are kept, so that the unpacked scenario finds its inputs. Inputs with absolute paths or
/// references, and inputs far above the scenario, are moved to a separate folder.
#[must_use]
pub fn place_inputs(scenario: &Path, inputs: &[(String, String)]) -> (String, Vec<String>) {
    let folder = scenario.parent().unwrap_or(Path::new("/"));
    let near: Vec<Option<PathBuf>> = inputs.iter().map(|(name, _)| near(folder, name)).collect();
    let common = near.iter().flatten().fold(folder.to_owned(), |common, path| {
        let shared = common.components().zip(path.components()).take_while(|(a, b)| a == b);
        shared.map(|(component, _)| component).collect()
    });
    let inside = |path: &Path| {
        let relative = path.strip_prefix(&common).unwrap_or(path);
        let names = relative.components().filter_map(|component| match component {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let text = names.collect::<Vec<&str>>().join("/");
        check_path(&text).is_ok().then_some(text)
    };
    let own = |index: usize, file: &str| match check_path(file) {
        Ok(()) => format!("{ELSEWHERE}/{index}/{file}"),
        Err(_) => format!("{ELSEWHERE}/{index}/input"),
    };
    let places = near.iter().zip(inputs).enumerate();
    let places =
        places.map(|(index, (near, (_, file)))| near.as_deref().and_then(inside).unwrap_or_else(|| own(index, file)));
    (inside(scenario).unwrap_or_else(|| "scenario.rhai".to_owned()), places.collect())
}

/// The absolute path of a relative name that is not far above the folder.
fn near(folder: &Path, name: &str) -> Option<PathBuf> {
    if name.contains("://") {
        return None;
    }
    let mut path = folder.to_owned();
    let mut levels_up = 0;
    for component in Path::new(name).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                levels_up += usize::from(path.components().count() <= folder.components().count());
                if !path.pop() || levels_up > MAX_LEVELS_UP {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for path in ["a", "a/b.rhai", "traces/x y.jsonl.zst"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "C:/a", "a\\b", "a\0", "a/ ", &"a".repeat(2000)] {
            assert!(check_path(path).is_err(), "{path}");
        }
    }

    fn placed(inputs: &[&str]) -> (String, Vec<String>) {
        let named: Vec<_> = inputs.iter().map(|name| (name.to_string(), "file.wasm".to_owned())).collect();
        place_inputs(Path::new("/home/me/project/scenarios/s.rhai"), &named)
    }

    #[test]
    fn files_keep_their_places_to_each_other() {
        assert_eq!(placed(&[]).0, "s.rhai");
        let (scenario, inputs) = placed(&["traces/t.jsonl", "../guests/dist/g.wasm"]);
        assert_eq!(scenario, "scenarios/s.rhai");
        assert_eq!(inputs, ["scenarios/traces/t.jsonl", "guests/dist/g.wasm"]);
    }

    #[test]
    fn what_is_elsewhere_has_a_place_of_its_own() {
        let (scenario, inputs) =
            placed(&["/data/t.jsonl", "oci://host/g@sha256:0", "../../../../../etc/passwd", "t.jsonl"]);
        assert_eq!(scenario, "s.rhai");
        assert_eq!(inputs, ["elsewhere/0/file.wasm", "elsewhere/1/file.wasm", "elsewhere/2/file.wasm", "t.jsonl"]);
    }
}
