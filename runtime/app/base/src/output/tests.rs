use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("it is writable");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_input_is_found_behind_every_kind_of_name() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write(&at("input"), "mine");
    symlink(at("input"), at("symbolic")).expect("links can be made");
    fs::hard_link(at("input"), at("hard")).expect("links can be made");
    fs::create_dir(at("sub")).expect("it is writable");
    for name in ["input", "symbolic", "hard", "sub/../input"] {
        let mut outputs = Outputs::new(true);
        outputs.reads(&at("input")).expect("nothing is written yet");
        assert!(matches!(outputs.create(&at(name)), Err(OutputError::IsInput { .. })), "{name}");
        // The output is created before the input is known, as with files that a script names while it runs.
        let mut outputs = Outputs::new(true);
        let draft = outputs.create(&at(name)).expect("it may be replaced");
        assert!(matches!(outputs.reads(&at("input")), Err(OutputError::IsOutput { .. })), "{name}");
        drop(draft);
    }
    assert_eq!(fs::read_to_string(at("input")).expect("it is there"), "mine");
}

#[test]
fn nothing_is_replaced_without_force() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write(&at("there"), "old");
    symlink(at("nowhere"), at("dangling")).expect("links can be made");
    for name in ["there", "dangling"] {
        assert!(matches!(Outputs::new(false).create(&at(name)), Err(OutputError::Exists { .. })), "{name}");
    }
    let replaced =
        Outputs::new(true).create(&at("there")).and_then(|file| file.write_with(|out| out.write_all(b"new")));
    replaced.expect("it may be replaced");
    assert_eq!(fs::read_to_string(at("there")).expect("it is there"), "new");
    assert!(matches!(Outputs::new(true).create(folder.path()), Err(OutputError::IsFolder { .. })));
}

#[test]
fn a_link_is_written_through() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write(&at("real"), "old");
    symlink(at("real"), at("link")).expect("links can be made");
    let draft = Outputs::new(true).create(&at("link")).expect("it may be replaced");
    draft.write_with(|out| out.write_all(b"new")).expect("it is writable");
    assert_eq!(fs::read_to_string(at("real")).expect("it is there"), "new");
    assert!(at("link").is_symlink());
}

#[test]
fn two_outputs_are_two_files() {
    let folder = folder();
    let mut outputs = Outputs::new(true);
    let _first = outputs.create(&folder.path().join("a")).expect("it is new");
    let second = outputs.create(&folder.path().join("./a"));
    assert!(matches!(second, Err(OutputError::Twice { .. })));
    let mut outputs = Outputs::new(false);
    for _ in 0..2 {
        let device = outputs.create(Path::new("/dev/null")).expect("a device can be written");
        device.write_with(|out| out.write_all(b"gone")).expect("a device takes it");
    }
}

#[test]
fn a_file_gets_its_name_when_it_is_complete() {
    let folder = folder();
    let path = folder.path().join("deep/er/a.json");
    let mut file = Outputs::new(false).create(&path).expect("parents are made").handle().expect("a handle");
    file.write_all(b"half").expect("it is writable");
    // The draft was dropped above, so it is removed.
    assert_eq!(names(path.parent().expect("a parent")), [""; 0]);
    let failed = Outputs::new(false).create(&path).and_then(|file| {
        file.write_with(|out| {
            out.write_all(b"half")?;
            Err(io::Error::other("full"))
        })
    });
    assert_eq!(failed.map_err(|error| error.to_string()), Err(format!("cannot write `{}`: full", path.display())));
    assert_eq!(names(path.parent().expect("a parent")), [""; 0]);
    // Another process creates the file first.
    let late = Outputs::new(false).create(&path).expect("it is new");
    write(&path, "theirs");
    assert!(matches!(late.commit(), Err(OutputError::Exists { .. })));
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "theirs");
}

#[test]
fn a_marked_folder_may_be_written_again() {
    let folder = folder();
    let out = folder.path().join("out");
    let commit = |files: &[&'static str], text: &str, force| {
        let mut folder = Outputs::new(force).folder(&out, &["a", "b"])?;
        let drafts = folder.drafts()?.to_owned();
        let files: Vec<_> = files.iter().map(|name| (*name, drafts.join(name))).collect();
        files.iter().for_each(|(_, draft)| write(draft, text));
        folder.commit(&files)
    };
    commit(&["a", "b"], "1", false).expect("it is new");
    assert_eq!(names(&out), [MARKER, "a", "b"]);
    commit(&["a"], "2", false).expect("it is marked");
    assert_eq!(names(&out), [MARKER, "a"], "what was not written again would be taken for the same run's");
    // Files that the marker does not list belong to others.
    write(&out.join("b"), "theirs");
    assert!(matches!(commit(&["a", "b"], "3", false), Err(OutputError::Exists { .. })));
    assert_eq!(fs::read_to_string(out.join("a")).expect("it is there"), "2");
    commit(&["a", "b"], "4", true).expect("it is forced");
    assert_eq!(fs::read_to_string(out.join("b")).expect("it is there"), "4");
    // `commit_beside` may add files.
    let mut beside = Outputs::new(false).folder(&out, &["b", "c"]).expect("b is marked, c is new");
    let draft = beside.drafts().expect("it is writable").join("c");
    write(&draft, "5");
    beside.commit_beside(&[("c", draft)]).expect("it is writable");
    assert_eq!(names(&out), [MARKER, "a", "b", "c"]);
    commit(&["a", "b"], "6", false).expect("all are marked");
    assert_eq!(names(&out), [MARKER, "a", "b"], "what was added belongs to the earlier run");
    let inside = Outputs::new(false).folder(&out.join("a"), &["x"]);
    assert!(matches!(inside, Err(OutputError::NotAFolder { .. })));
}

#[test]
fn drafts_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not() {
    let folder = folder();
    fs::create_dir(folder.path().join(".vcr-drafts-killed")).expect("it is writable");
    let mut first = Outputs::new(false).folder(folder.path(), &["a"]).expect("it is empty");
    let drafts = first.drafts().expect("it is writable").to_owned();
    assert_eq!(names(folder.path()).len(), 1);
    let _second = Outputs::new(false).folder(folder.path(), &["a"]).expect("nothing has its name yet");
    assert!(drafts.is_dir());
    drop(first);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_folder_that_was_made_for_nothing_is_removed() {
    let folder = folder();
    let of = |name: &str| Outputs::new(false).folder(&folder.path().join(name), &["file"]).expect("it can be made");
    drop(of("new/inner"));
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
    fs::create_dir(folder.path().join("old")).expect("it is writable");
    drop(of("old"));
    of("full").commit(&[]).expect("it is writable");
    assert_eq!(names(folder.path()), ["full", "old"]);
}

#[test]
fn a_folder_without_a_file_of_the_next_command_is_removed() {
    let folder = folder();
    let of = |name: &str| Outputs::new(false).folder(&folder.path().join(name), &["file"]).expect("it can be made");
    for name in ["own", "shared"] {
        let mut written = of(name);
        let draft = written.drafts().expect("it is writable").join("file");
        fs::write(&draft, "text").expect("it is writable");
        written.commit(&[("file", draft)]).expect("it is writable");
    }
    fs::write(folder.path().join("shared/other"), "text").expect("it is writable");
    of("own").commit(&[]).expect("it is writable");
    of("shared").commit(&[]).expect("it is writable");
    assert_eq!(names(folder.path()), ["shared"]);
    assert_eq!(names(&folder.path().join("shared")), ["other"]);
}

#[test]
fn errors_of_stores_name_the_object_once() {
    for text in ["`s3://a/b`: refused", "invalid URL `s3://a/b`: refused", "refused"] {
        let source = io::Error::other(text);
        assert_eq!(write_error(Path::new("s3://a/b"), source).to_string(), "cannot write `s3://a/b`: refused");
    }
    let source = io::Error::other("`s3://a/b`: refused");
    let (path, kept) = (PathBuf::from("s3://a/b"), PathBuf::from("kept"));
    let error = OutputError::NotUploaded { path, kept, source }.to_string();
    assert_eq!(error, "cannot upload `s3://a/b`: refused; the file is kept as `kept`");
}
