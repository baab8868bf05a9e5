//! A port for each data-parallel rank.

use std::net::TcpListener;

use serde_json::json;
use vcr_tests::{Call, Folder, HttpAnswer, Serve, free_ports, read_answer};

const PORTS: [&str; 3] = ["--data-parallel-size", "3", "--data-parallel-multi-port-external-lb"];

fn ask(address: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    let body = json!({"prompt": "a", "max_tokens": 2}).to_string();
    let call = Call { method: "POST", path: "/v1/completions", headers: &headers, body: body.as_bytes() };
    read_answer(call.begin(address))
}

/// A request goes to the rank of its port, even if another rank has equally little to do.
#[test]
fn requests_go_to_the_rank_of_their_port() {
    let serve = Serve::start(&PORTS);
    let address = |rank: u16| match rank {
        0 => serve.address().to_owned(),
        rank => {
            let line = serve.wait_for(&format!("serving rank {rank} of sim on http://"));
            line.rsplit("://").next().expect("the line has an address").trim().to_owned()
        }
    };
    let ended = |rank: u16| {
        let answer = ureq::get(format!("http://{}/metrics", address(1))).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        let series =
            format!(r#"vllm:request_success_total{{model_name="sim",engine="{rank}",finished_reason="length"}} "#);
        let count = text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("0");
        count.parse::<u32>().expect("a number")
    };
    for rank in [2, 2, 1, 2, 0] {
        let answer = ask(&address(rank), &[]);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!([0, 1, 2].map(ended), [1, 1, 3]);
    let answer = ask(&address(2), &[("X-data-parallel-rank", "1")]);
    assert_eq!((answer.status, [0, 1, 2].map(ended)), (200, [1, 2, 3]), "{}", answer.text());
}

#[test]
fn ports_follow_each_other_and_one_in_use_is_told() {
    let port = free_ports(3);
    let _taken = TcpListener::bind(("127.0.0.1", port + 2)).expect("it is free");
    let told = format!("cannot listen on 127.0.0.1:{}", port + 2);
    let args = ["serve", "--port", &port.to_string()];
    Folder::new().vcr(&[&args, &PORTS[..]].concat()).failed(2, &[&told]);
    Folder::new().vcr(&[&["serve", "--port", "65534"], &PORTS[..]].concat()).failed(2, &["no port for rank 2"]);
}

#[test]
fn responses_name_their_pod_and_port() {
    let serve = Serve::start(&[&PORTS[..], &["--pod-name", "sim-0", "--pod-namespace", "tests"]].concat());
    let line = serve.wait_for("serving rank 1 of sim on http://");
    assert_eq!(serve.log().matches("serving rank 1 of").count(), 1, "{}", serve.log());
    let other = line.rsplit("://").next().expect("the line has an address").trim();
    for address in [serve.address(), other] {
        let answer = ask(address, &[]);
        let port = address.rsplit(':').next();
        let headers = ["pod", "namespace", "port"].map(|name| answer.header(&format!("x-inference-{name}")));
        assert_eq!(headers, [Some("sim-0"), Some("tests"), port]);
    }
    let answer = ask(Serve::start(&["--pod-namespace", ""]).address(), &[]);
    assert_eq!((answer.header("x-inference-pod"), answer.header("x-inference-namespace")), (None, None));
}
