//! A server with the protocol of S3 that other people wrote, out of `tests/frontends/clients.sh moto`.

use std::process::{Child, Command, Stdio};

use vcr_tests::{client, free_port, wait_until};

/// Whose signature the server does not look at; objects are not for everybody.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=an-id/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// A running server with one empty bucket, `bucket`.
pub(crate) struct S3 {
    process: Child,
    port: u16,
}

impl S3 {
    /// None, with a message, if it has not been installed.
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

    /// The contents of an object, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        ureq::get(self.url(key))
            .header("Authorization", SIGNED)
            .call()
            .ok()
            .map(|mut answer| answer.body_mut().with_config().limit(1 << 30).read_to_vec().expect("it is whole"))
    }

    /// Lets a command find the server, as Amazon's own tools do.
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
