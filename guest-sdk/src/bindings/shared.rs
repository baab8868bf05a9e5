#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

use alloc::string::String;

wit_bindgen::generate!({
    path: "../wit",
    inline: "
        package vcr:sdk;

        world shared {
            import vcr:guest/types@0.1.0;
            import vcr:guest/observe@0.1.0;
            import vcr:guest/groups@0.1.0;
            import vcr:guest/details@0.1.0;
        }
    ",
    generate_all,
});

impl From<String> for vcr::guest::types::Failure {
    fn from(message: String) -> Self {
        Self { message, traceback: None }
    }
}

impl From<vcr::guest::types::Slo> for vcr_policy::scheduling::Slo {
    fn from(slo: vcr::guest::types::Slo) -> Self {
        Self { ttft_ns: slo.ttft_ns, tpot_ns: slo.tpot_ns, e2e_ns: slo.e2e_ns }
    }
}
