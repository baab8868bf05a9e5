//! KV that moves between two hosts: two network namespaces with different addresses.

use std::io;
use std::process::{Command, Output};

use vcr_skips::skip_optional;
use vcr_tests::vcr;

use crate::groups::with_nixl;

/// Makes two connected hosts and runs `"$VCR" "$@"` in both: one listens, the other connects.
const TWO_HOSTS: &str = r#"
set -e
# UCX looks for interfaces there.
mount -t sysfs sysfs /sys
ip link set lo up
unshare --net --mount sh -c 'mount -t sysfs sysfs /sys; touch ready; exec sleep 120' &
other=$!
inside() { nsenter --net=/proc/$other/ns/net --mount=/proc/$other/ns/mnt "$@"; }
until [ -e ready ]; do kill -0 $other; sleep 0.02; done
ip link add left type veth peer name right netns $other
ip addr add 10.77.0.1/24 dev left
ip link set left up
inside ip link set lo up
inside ip addr add 10.77.0.2/24 dev right
inside ip link set right up
"$VCR" inspect kv-bench "$@" --listen 10.77.0.1:5600 > listening &
listener=$!
until [ -s listening ]; do kill -0 $listener; sleep 0.05; done
if inside "$VCR" inspect kv-bench "$@" --connect 10.77.0.1:5600 --repeat 2 --json; then ended=0; else ended=$?; fi
kill $listener $other
exit $ended
"#;

/// Runs `script` as root in new namespaces.
fn in_namespaces(script: &str, args: &[&str]) -> io::Result<Output> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", script, "sh"]).args(args);
    // With shared memory, UCX would find that both hosts are the same machine.
    command.env("VCR", vcr()).env("UCX_TLS", "tcp").current_dir(folder.path());
    command.output()
}

fn moves_between_hosts(plane: &[&str]) {
    let can = in_namespaces("mount -t sysfs sysfs /sys && ip link add left type veth && command -v nsenter", &[]);
    if !can.is_ok_and(|can| can.status.success()) {
        return skip_optional("network namespaces cannot be made here (`unshare --user --net`, `ip link add`)");
    }
    let sizes = ["--total", "8MiB", "--page", "64KiB"];
    let done = in_namespaces(TWO_HOSTS, &[plane, &sizes].concat()).expect("it was there before");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let said: serde_json::Value = serde_json::from_str(&said).expect("figures");
    assert_eq!(said["pages"], 128, "{said}");
    assert!(said["transfer_gb_per_s"].as_f64() > Some(0.0), "{said}");
}

#[test]
fn pages_move_between_hosts() {
    moves_between_hosts(&["--kv-transfer", "tcp"]);
}

#[test]
fn pages_move_between_hosts_through_nixl() {
    with_nixl(moves_between_hosts);
}
