//! The package for JavaScript tests.

use vcr_tests::{has_node, node_tests, root};

#[test]
fn the_package_starts_servers_and_plays_cassettes() {
    if has_node() {
        node_tests(&root().join("javascript"));
    }
}
