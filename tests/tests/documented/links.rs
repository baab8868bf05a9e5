//! Links in the pages lead to existing files and headings.

use std::fs;
use std::path::Path;

use vcr_tests::root;

use crate::extract::pages;

/// Lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Targets of links to files of the repository.
fn links(text: &str) -> Vec<String> {
    let lines = prose(text).map(without_code);
    let targets = |line: String| -> Vec<String> {
        let parts = line.split("](").skip(1).filter_map(|part| part.split(')').next());
        parts.map(str::to_owned).collect()
    };
    lines.flat_map(targets).filter(|target| !target.starts_with("http")).collect()
}

/// Anchors of headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings =
        prose(text).filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| -> String {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.map(|char| if char == ' ' { '-' } else { char }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    let mut checked = 0;
    let others =
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "tests/oracle/README.md", "tests/recordings/README.md"];
    for page in pages().into_iter().chain(others.map(str::to_owned)) {
        let path = root().join(&page);
        let text = fs::read_to_string(&path).expect("the page is text");
        for link in links(&text) {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap_or(Path::new("")).join(file),
            };
            let has_anchor = || {
                let text = fs::read_to_string(&target).unwrap_or_default();
                anchor.is_empty() || anchors(&text).iter().any(|known| known == anchor)
            };
            if !target.exists() || !has_anchor() {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(checked > 100, "only {checked} links were found");
}

#[test]
fn every_page_is_listed_in_the_index() {
    let index = fs::read_to_string(root().join("docs/README.md")).expect("the index is text");
    let listed = links(&index);
    for page in pages() {
        let Some(page) = page.strip_prefix("docs/") else { continue };
        // These pages list the other pages: for readers, and for mdBook. `site.rs` checks the lists.
        let is_list = page == "README.md" || page == "SUMMARY.md";
        assert!(is_list || listed.iter().any(|link| link == page), "docs/README.md does not list {page}");
    }
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# `vcr run`: a b\nSee [a](x.md#y), `[no](code)`\n```\n[no](block)\n# no\n```\n[web](https://x)\n";
    assert_eq!(links(text), ["x.md#y"]);
    assert_eq!(anchors(text), ["vcr-run-a-b"]);
}
