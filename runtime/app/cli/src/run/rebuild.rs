//! Rebuilds the guests of a watched scenario.

use std::fs;
use std::path::{Path, PathBuf};

use vcr_guest_tools::build::{Options, is_one};

use crate::exit::{eprint_line, print_error};
use crate::guest::build_guest;

/// Folders without source files, such as build output.
const SKIPPED: [&str; 5] = ["dist", "target", "node_modules", "vendor", "__pycache__"];

/// The project of a guest whose component is in a `dist` folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestSource {
    /// Folder of the project.
    folder: PathBuf,
    /// Folder of the component.
    out: PathBuf,
}

impl GuestSource {
    /// The project of a component, if the component is where `vcr guest build` puts it.
    pub(super) fn of_component(component: &Path) -> Option<Self> {
        if component.extension()? != "wasm" {
            return None;
        }
        let out = component.parent()?;
        if out.file_name()? != "dist" {
            return None;
        }
        let project = out.parent()?;
        let in_workspace = project.join(component.file_stem()?);
        let folder = [in_workspace, project.to_owned()].into_iter().find(|folder| is_one(folder))?;
        Some(Self { folder, out: out.to_owned() })
    }

    /// The source files, sorted.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        list(&self.folder, &mut files);
        files
    }

    /// Rebuilds the guest and returns whether that succeeded. On failure the component stays unchanged.
    pub(super) fn build(&self) -> bool {
        eprint_line(format_args!("building {}", self.folder.display()));
        let built =
            Options::from_env().and_then(|options| build_guest(&self.folder, Some(&self.out), &options, &mut |_| {}));
        if let Err(error) = &built {
            print_error(error, error.hint().as_deref());
            let folder = self.folder.display();
            eprint_line(format_args!(
                "no run: the component of {folder} is out of date; waiting for a build that succeeds"
            ));
        }
        built.is_ok()
    }
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_component_is_its_project_or_lies_in_its_workspace() {
        let root = tempfile::tempdir().expect("a folder");
        let of = |component: &str| GuestSource::of_component(&root.path().join(component)).map(|found| found.folder);
        fs::create_dir_all(root.path().join("one/src")).expect("it is ours");
        fs::create_dir_all(root.path().join("guests/two/src")).expect("it is ours");
        assert_eq!(of("one/dist/one.wasm"), Some(root.path().join("one")));
        assert_eq!(of("guests/dist/two.wasm"), Some(root.path().join("guests/two")));
        for other in ["guests/dist/three.wasm", "one/one.wasm", "one/dist/one.txt"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn what_tools_leave_is_no_source() {
        let root = tempfile::tempdir().expect("a folder");
        for file in ["one/src/lib.rs", "one/config.json", "one/dist/one.wasm", "one/target/x", "one/.git/y"] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("it is ours");
            fs::write(path, "").expect("it is ours");
        }
        let source = GuestSource::of_component(&root.path().join("one/dist/one.wasm")).expect("it is there");
        let folder = root.path().join("one");
        assert_eq!(source.files(), [folder.join("config.json"), folder.join("src/lib.rs")]);
    }
}
