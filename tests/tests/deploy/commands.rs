//! Every command in the manifests, run like in a pod.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use vcr_tests::{Folder, Said, free_port, root, vcr};

use crate::rendered::{Container, rendered};

/// A folder that is like the image's working folder, with the mounted folders in it.
fn folder(script: Option<&str>) -> Folder {
    let folder = Folder::new();
    std::os::unix::fs::symlink(root().join("scenarios"), folder.path().join("scenarios")).expect("it is writable");
    std::fs::create_dir(folder.path().join("out")).expect("it is writable");
    if let Some(script) = script {
        std::fs::create_dir(folder.path().join("script")).expect("it is writable");
        folder.write("script/scenario.rhai", script);
    }
    folder
}

/// The arguments, with the folders and names that a pod would have.
fn in_folder(args: &[String], folder: &Path) -> Vec<String> {
    let place = |name: &str| folder.join(name).display().to_string();
    let replace = |arg: &String| {
        let arg = arg.replace("$(POD_NAME)", "pod-0").replace("$(POD_IP)", "127.0.0.1");
        let arg = arg.replace("=/out/", &format!("={}/", place("out")));
        let arg = arg.replace("/captures/", &format!("{}/", place("captures")));
        match arg.as_str() {
            "/out" => place("out"),
            "/script/scenario.rhai" => place("script/scenario.rhai"),
            _ => arg,
        }
    };
    args.iter().map(replace).collect()
}

fn run(folder: &Folder, args: &[String], variables: &[(&str, &str)]) -> Said {
    let args = in_folder(args, folder.path());
    Said::of(Command::new(vcr()).args(args).current_dir(folder.path()).envs(variables.iter().copied()))
}

/// The commands of vcr containers that begin with a word, without duplicates.
fn commands<'a>(containers: &'a [Container<'a>], word: &str) -> Vec<&'a Container<'a>> {
    let mut seen = BTreeSet::new();
    let of_word = containers.iter().filter(|it| it.is_vcr() && it.args()[0] == word);
    of_word.filter(|it| seen.insert(it.args())).collect()
}

#[test]
fn every_container_runs_a_known_command() {
    let Some(rendered) = rendered() else { return };
    let containers = rendered.containers();
    let words: BTreeSet<String> = containers.iter().filter(|it| it.is_vcr()).map(|it| it.args()[0].clone()).collect();
    let known = ["merge", "play", "record", "run", "serve"].map(str::to_owned);
    assert_eq!(words, known.into(), "each of these has a test below");
    // Kubernetes replaces `$(NAME)` only if the container sets NAME.
    for it in containers.iter().filter(|it| it.is_vcr()) {
        for name in it.args().iter().filter_map(|arg| arg.split_once("$(")?.1.split_once(')')) {
            assert!(it.variables().contains(&name.0), "{}: {} is not set", it.place, name.0);
        }
    }
}

#[test]
fn servers_take_their_options() {
    let Some(rendered) = rendered() else { return };
    let containers = rendered.containers();
    let servers = commands(&containers, "serve");
    assert!(servers.len() >= 6, "{}", servers.len());
    for it in servers {
        let args = [it.args(), vec!["--show-config".to_owned()]].concat();
        let said = run(&folder(None), &args, &[("VCR_ENGINE_ID", "vcr-fleet-0")]).ended(0);
        assert!(said.stdout.contains("0.0.0.0"), "{}: {}", it.place, said.stdout);
    }
}

/// Recorders and engines start, try to connect to a peer, and give up because there is none.
#[test]
fn recorders_and_engines_take_their_options() {
    let Some(rendered) = rendered() else { return };
    let containers = rendered.containers();
    for word in ["record", "play"] {
        let all = commands(&containers, word);
        assert!(!all.is_empty(), "{word}");
        for it in all {
            let (frontend, engines) = (free_port().to_string(), free_port().to_string());
            let elsewhere =
                |arg: String| arg.replace("29550", &frontend).replace("29560", &engines).replace("9091", "0");
            let args: Vec<String> = it.args().into_iter().map(elsewhere).collect();
            let args = [args, vec!["--connect-timeout=1s".to_owned()]].concat();
            let said = run(&folder(None), &args, &[]).ended(2);
            assert!(said.stderr.contains("within 1 s"), "{}: {}", it.place, said.stderr);
        }
    }
}

/// A Job runs the shards of a sweep, and another Job merges them into a table.
#[test]
fn jobs_make_a_table() {
    let Some(rendered) = rendered() else { return };
    let script = rendered.of("helm everything").iter().find(|it| it["kind"] == "ConfigMap").expect("a script");
    let script = script["data"]["scenario.rhai"].as_str().expect("a text");
    for (sweep, merge, table) in
        [("kustomize sweep", "kustomize merge", "grid.csv"), ("helm everything", "helm everything", "table.json")]
    {
        let job = |name: &str, word: &str| {
            let is_job = |it: &&serde_json::Value| it["kind"] == "Job";
            let jobs: Vec<_> = rendered.of(name).iter().filter(is_job).cloned().collect();
            let all = crate::rendered::containers(name, &jobs);
            let found = all.iter().position(|it| it.args()[0] == word).expect("a Job");
            (jobs[found]["spec"].clone(), all[found].args())
        };
        let (spec, args) = job(sweep, "run");
        assert_eq!(spec["completionMode"], "Indexed");
        let folder = folder(Some(script));
        for index in 0..spec["completions"].as_u64().expect("a number") {
            let _ = run(&folder, &args, &[("JOB_COMPLETION_INDEX", &index.to_string())]).ended(0);
        }
        let _ = run(&folder, &job(merge, "merge").1, &[]).ended(0);
        let whole: Vec<String> = args.iter().filter(|arg| !arg.starts_with("--shard")).cloned().collect();
        let merged = std::fs::read(folder.path().join("out").join(table)).expect("a table");
        let _ = run(&folder, &whole, &[]).ended(0);
        assert_eq!(merged, std::fs::read(folder.path().join("out").join(table)).expect("a table"));
    }
}
