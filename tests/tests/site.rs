//! The documentation site: it has every page once, its links lead somewhere, and two of its pages are generated
//! from the program and the schemas.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vcr_tests::{Folder, Said, client, root, vcr};

/// Adds Markdown files of a folder, relative to `docs`.
fn pages(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            pages(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let page = path.strip_prefix(root().join("docs")).expect("it is below docs");
            into.push(page.to_str().expect("names are text").to_owned());
        }
    }
}

#[test]
fn the_summary_has_every_page_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("the summary is text");
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for target in summary.split("](").skip(1).filter_map(|part| part.split(')').next()) {
        *listed.entry(target).or_default() += 1;
    }
    let mut wanted = Vec::new();
    pages(&docs, &mut wanted);
    wanted.retain(|page| page != "SUMMARY.md");
    wanted.sort();
    assert_eq!(listed.keys().copied().collect::<Vec<_>>(), wanted, "docs/SUMMARY.md has other pages than docs");
    let twice: Vec<_> = listed.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "docs/SUMMARY.md has pages more than once: {twice:?}");
}

/// Texts between `before` and `after`.
fn between<'a>(text: &'a str, before: &'a str, after: char) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| rest.split(after).next())
}

/// Adds all files of a folder and its subfolders.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut place, part| {
        if part.as_os_str() == ".." {
            place.pop();
        } else {
            place.push(part);
        }
        place
    })
}

/// The site, built with the program under test. `None` if mdBook is not installed.
fn built() -> Option<Folder> {
    let site = client("site")?;
    let folder = Folder::new();
    let mut build = site.program("mdbook");
    build.args(["build", "docs", "--dest-dir"]).arg(folder.path()).env("VCR", vcr()).current_dir(root());
    assert!(!Said::of(&mut build).ended(0).stderr.contains("WARN"));
    Some(folder)
}

#[test]
fn commands_and_schemas_are_completed_by_the_build() {
    let Some(folder) = built() else { return };
    let page = |name: &str| fs::read_to_string(folder.path().join("reference").join(name)).expect("the page is text");
    let _ = folder.vcr(&["man", "--out", ".", "--format", "markdown"]).ended(0);
    let commands = fs::read_to_string(folder.path().join("commands.md")).expect("it was written");
    let names: Vec<&str> = between(&commands, "\n## ", '\n').collect();
    assert!(names.len() > 40, "{names:?}");
    let html = page("commands.html");
    let missing: Vec<_> =
        names.iter().filter(|name| !html.contains(&format!("id=\"{}\"", name.replace(' ', "-")))).collect();
    assert!(missing.is_empty(), "the page of commands lacks {missing:?}");

    let html = page("schemas.html");
    let (mut schemas, mut missing) = (Vec::new(), Vec::new());
    files(&root().join("docs/schemas"), &mut schemas);
    for path in &schemas {
        let schema: Value = serde_json::from_slice(&fs::read(path).expect("it is readable")).expect("it is JSON");
        let fields = schema["properties"].as_object().expect("a schema has properties");
        // The last link is used: the list above the tables has an earlier one.
        let name = path.file_name().expect("a file").to_str().expect("names are text");
        let (_, section) = html.rsplit_once(&format!(">{name}</a>")).unwrap_or_default();
        let section = section.split("<h2").next().unwrap_or_default();
        missing.extend(fields.keys().filter(|name| !section.contains(&format!("<code>{name}</code>"))).cloned());
    }
    assert!(schemas.len() > 7 && missing.is_empty(), "the page of schemas lacks {missing:?}");
}

#[test]
fn links_of_the_site_lead_somewhere() {
    let Some(folder) = built() else { return };
    let mut paths = Vec::new();
    files(folder.path(), &mut paths);
    let texts: BTreeMap<&Path, String> = paths
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "html"))
        .map(|path| (path.as_path(), fs::read_to_string(path).expect("pages are text")))
        .collect();
    let anchors: BTreeMap<&Path, BTreeSet<&str>> =
        texts.iter().map(|(path, text)| (*path, between(text, " id=\"", '"').collect())).collect();
    let (mut links, mut broken) = (0, Vec::new());
    for (page, text) in &texts {
        // Links in mdBook's frame around a page are ignored.
        let Some(body) = text.split_once("<main>").and_then(|(_, rest)| rest.split_once("</main>")) else { continue };
        let targets = between(body.0, "href=\"", '"').chain(between(body.0, "src=\"", '"'));
        for target in targets.filter(|target| !target.contains(':')) {
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let place = if file.is_empty() { page.to_path_buf() } else { normal(&page.with_file_name("").join(file)) };
            let has_anchor = || anchors.get(place.as_path()).is_none_or(|known| known.contains(anchor));
            if !place.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {target}", page.strip_prefix(folder.path()).expect("it is below").display()));
            }
        }
    }
    assert!(broken.is_empty(), "links of the site that lead nowhere:\n{}", broken.join("\n"));
    assert!(links > 500, "only {links} links were found");
}
