//! Folders of recordings, and copies of recordings for changes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde_json::Value;
use vcr_steplog::LogError;
use vcr_steplog::conform::{self, CaseReport, Mismatch};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository is there")
}

pub(crate) fn group(name: &str) -> PathBuf {
    root().join("tests/recordings").join(name)
}

pub(crate) fn cases(folder: &Path) -> Vec<PathBuf> {
    conform::cases(folder).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn text_of(case: &Path, file: &str) -> String {
    let mut text = String::new();
    let packed = case.join(format!("{file}.gz"));
    if packed.is_file() {
        let file = File::open(&packed).expect("it can be read");
        MultiGzDecoder::new(file).read_to_string(&mut text).expect("it can be unpacked");
        return text;
    }
    std::fs::read_to_string(case.join(file)).expect("it can be read")
}

pub(crate) fn json_of(case: &Path, file: &str) -> Value {
    serde_json::from_str(&text_of(case, file)).expect("it is JSON")
}

/// Prints a line even if the test harness captures the output.
pub(crate) fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("there is a place to write to");
}

pub(crate) struct CaseCopy {
    folder: tempfile::TempDir,
}

impl CaseCopy {
    pub(crate) fn of(case: &str) -> Self {
        let from = group(case);
        let folder = tempfile::tempdir().expect("there is a place for temporary files");
        for entry in std::fs::read_dir(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
            let name = entry.expect("it can be listed").file_name().into_string().expect("names are UTF-8");
            let name = name.trim_end_matches(".gz");
            std::fs::write(folder.path().join(name), text_of(&from, name)).expect("it can be written");
        }
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn text(&self, file: &str) -> String {
        text_of(self.folder(), file)
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder().join(file), text).expect("it can be written");
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.folder().join(file)).expect("it can be removed");
    }

    pub(crate) fn edit_json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        let mut value = json_of(self.folder(), file);
        edit(&mut value);
        self.write(file, &value.to_string());
    }

    pub(crate) fn edit_line(&self, file: &str, line: usize, edit: impl FnOnce(&str) -> String) {
        let text = self.text(file);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[line - 1] = edit(&lines[line - 1]);
        self.write(file, &(lines.join("\n") + "\n"));
    }

    /// Changes the first line that `edit` changes, and returns its number.
    #[track_caller]
    pub(crate) fn edit_first(&self, file: &str, edit: impl Fn(&str) -> Option<String>) -> u64 {
        let text = self.text(file);
        let found = text.lines().zip(1..).find_map(|(line, number)| Some((edit(line)?, number)));
        self.put(file, found)
    }

    /// Changes the last line that `edit` changes, and returns its number.
    #[track_caller]
    pub(crate) fn edit_last(&self, file: &str, edit: impl Fn(&str) -> Option<String>) -> u64 {
        let text = self.text(file);
        let lines: Vec<&str> = text.lines().collect();
        let found = lines.iter().enumerate().rev().find_map(|(index, line)| Some((edit(line)?, index + 1)));
        self.put(file, found)
    }

    #[track_caller]
    fn put(&self, file: &str, changed: Option<(String, usize)>) -> u64 {
        let (changed, number) = changed.unwrap_or_else(|| panic!("no line of {file} can be changed like that"));
        self.edit_line(file, number, |_| changed);
        number as u64
    }

    pub(crate) fn edit_all(&self, file: &str, edit: impl Fn(&str) -> String) {
        let text = self.text(file);
        let lines: Vec<String> = text.lines().map(edit).collect();
        self.write(file, &(lines.join("\n") + "\n"));
    }

    pub(crate) fn replay(&self) -> Result<CaseReport, LogError> {
        conform::replay(self.folder())
    }

    #[track_caller]
    pub(crate) fn mismatch(&self) -> Mismatch {
        let report = self.replay().unwrap_or_else(|error| panic!("{error}"));
        report.mismatch.expect("the recording is not reproduced any more")
    }

    #[track_caller]
    pub(crate) fn error(&self) -> String {
        self.replay().expect_err("the recording is refused").to_string()
    }
}

/// Whether the recording `group/name` is reproduced with changed settings, without a check of the derived settings.
#[track_caller]
pub(crate) fn is_reproduced(case: &str, edit: impl FnOnce(&mut Value)) -> bool {
    let copy = CaseCopy::of(case);
    copy.edit_json("config.json", |file| {
        file.as_object_mut().expect("an object").remove("batch_queue");
        let runner = &file["config"]["effective"]["use_v2_model_runner"];
        file["config"]["effective"] = serde_json::json!({ "use_v2_model_runner": runner });
        edit(&mut file["config"]);
    });
    copy.replay().is_ok_and(|report| report.mismatch.is_none())
}

pub(crate) fn name_of(case: &Path) -> String {
    case.file_name().expect("a case has a name").to_string_lossy().into_owned()
}

/// Changes the value of a key at the top level of a line, as text. None if the line lacks the key or `edit` returns
/// None. The rest of the line stays unchanged.
pub(crate) fn with_text(line: &str, key: &str, edit: impl FnOnce(&str) -> Option<String>) -> Option<String> {
    let start = line.find(&format!("\"{key}\":"))? + key.len() + 3;
    let mut values = serde_json::Deserializer::from_str(&line[start..]).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    let end = start + values.byte_offset();
    Some(format!("{}{}{}", &line[..start], edit(&line[start..end])?, &line[end..]))
}

/// Like [`with_text`], with the value as JSON. `edit` returns whether it changed the value.
pub(crate) fn with_value(line: &str, key: &str, edit: impl FnOnce(&mut Value) -> bool) -> Option<String> {
    with_text(line, key, |text| {
        let mut value = serde_json::from_str(text).expect("a value of a JSON line is JSON");
        edit(&mut value).then(|| value.to_string())
    })
}
