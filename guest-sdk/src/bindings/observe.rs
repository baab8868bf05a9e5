#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

wit_bindgen::generate!({
    path: "../wit/v0_2",
    inline: "
        package vcr:sdk;

        world observer {
            import vcr:guest/observe@0.2.0;
        }
    ",
    generate_all,
});
