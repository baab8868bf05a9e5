//! A server with S3's protocol that others wrote, from `tests/frontends/clients.sh moto`.

use std::process::{Child, Command, Stdio};

use vcr_tests::{client, free_port, wait_until};

/// The server does not check the signature, but refuses objects without one.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=an-id/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// A running server with one empty bucket, `bucket`.
pub(crate) struct S3 {
    process: Child,
    port: u16,
}

impl S3 {
    /// `None`, with a message, if the server has not been installed.
    pub(crate) fn start() -> Option<Self> {
        let client = client("moto")?;
        let port = free_port();
        let port_text = port.to_string();
        let mut command = client.python(&["-m", "moto.server", "-H", "127.0.0.1", "-p", &port_text]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let s3 = Self { process, port };
        wait_until("the server answers", || ureq::put(s3.url("")).header("Authorization", SIGNED).send_empty().is_ok());
        Some(s3)
    }

    fn url(&self, key: &str) -> String {
        format!("http://127.0.0.1:{}/bucket/{key}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn put(&self, key: &str, contents: &[u8]) {
        ureq::put(self.url(key)).header("Authorization", SIGNED).send(contents).expect("it takes it");
    }

    /// Content of an object; `None` if there is none.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        ureq::get(self.url(key))
            .header("Authorization", SIGNED)
            .call()
            .ok()
            .map(|mut answer| answer.body_mut().with_config().limit(1 << 30).read_to_vec().expect("it is whole"))
    }

    /// Settings with which a command finds the server, as for Amazon's own tools.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ACCESS_KEY_ID", "an-id".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", super::SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    pub(crate) fn set(&self, command: &mut Command) {
        command.envs(self.settings());
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
