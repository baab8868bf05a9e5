//! The site of the documentation has every page, once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use vcr_tests::root;

/// Markdown files of a folder, relative to `docs`.
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
