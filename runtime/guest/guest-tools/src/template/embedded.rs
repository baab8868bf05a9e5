//! The files of projects.

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Manifests of the SDK and the harness, as they are in this workspace.
pub(crate) const SDK_MANIFEST: &str = include_str!("../../../../../guest-sdk/Cargo.toml");
pub(crate) const FITTED_MANIFEST: &str = include_str!("../../../../latency/fitted/Cargo.toml");
pub(crate) const POLICY_MANIFEST: &str = include_str!("../../../../engine/policy/Cargo.toml");
pub(crate) const HARNESS_MANIFEST: &str = include_str!("../../../../../guest-sdk/harness/Cargo.toml");

macro_rules! template {
    ($path:expr) => {
        include_str!(concat!("../../templates/", $path))
    };
}

/// Files of every project in Rust.
pub(crate) const RUST_FILES: &[(&str, &str)] = &[
    ("Cargo.toml", template!("rust/Cargo.toml")),
    ("README.md", template!("rust/README.md")),
    (".gitignore", template!("rust/gitignore")),
    ("tests/check.rs", template!("rust/check.rs")),
];

/// The manifest of a guest with a fitted model inside.
pub(crate) const FITTED_GUEST_MANIFEST: &str = template!("fitted/Cargo.toml");

/// Files of every project in Python.
pub(crate) const PYTHON_FILES: &[(&str, &str)] = &[
    ("pyproject.toml", template!("python/pyproject.toml")),
    ("README.md", template!("python/README.md")),
    (".gitignore", template!("python/gitignore")),
];

/// Files of every project in JavaScript.
pub(crate) const JAVASCRIPT_FILES: &[(&str, &str)] = &[
    ("package.json", template!("javascript/package.json")),
    ("jsconfig.json", template!("javascript/jsconfig.json")),
    ("README.md", template!("javascript/README.md")),
    (".gitignore", template!("javascript/gitignore")),
];

/// The file of a project in Rust for its world.
pub(crate) struct RustWorld {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) config: &'static str,
}

macro_rules! rust_world {
    ($name:literal) => {
        RustWorld {
            name: $name,
            source: template!(concat!("rust/worlds/", $name, ".rs")),
            config: template!(concat!("rust/worlds/", $name, ".json")),
        }
    };
}

/// The files of a project in Python or JavaScript for its world.
pub(crate) struct ScriptWorld {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) test: &'static str,
    pub(crate) config: &'static str,
}

macro_rules! script_world {
    ($language:literal, $name:literal, $source:literal, $test:literal) => {
        ScriptWorld {
            name: $name,
            source: template!(concat!($language, "/worlds/", $name, "/", $source)),
            test: template!(concat!($language, "/worlds/", $name, "/", $test)),
            config: template!(concat!($language, "/worlds/", $name, "/config.json")),
        }
    };
}

impl RustWorld {
    /// Every world, in listing order.
    pub(crate) const ALL: &'static [Self] = &[
        rust_world!("latency-model"),
        rust_world!("scheduler-policy"),
        rust_world!("router"),
        rust_world!("autoscaler"),
        rust_world!("failure-injector"),
        rust_world!("token-source"),
    ];
}

impl ScriptWorld {
    /// Every world in Python, in the same order.
    pub(crate) const PYTHON: &'static [Self] = &[
        script_world!("python", "latency-model", "app.py", "test_app.py"),
        script_world!("python", "scheduler-policy", "app.py", "test_app.py"),
        script_world!("python", "router", "app.py", "test_app.py"),
        script_world!("python", "autoscaler", "app.py", "test_app.py"),
        script_world!("python", "failure-injector", "app.py", "test_app.py"),
        script_world!("python", "token-source", "app.py", "test_app.py"),
    ];

    /// Every world in JavaScript, in the same order.
    pub(crate) const JAVASCRIPT: &'static [Self] = &[
        script_world!("javascript", "latency-model", "app.js", "app.test.js"),
        script_world!("javascript", "scheduler-policy", "app.js", "app.test.js"),
        script_world!("javascript", "router", "app.js", "app.test.js"),
        script_world!("javascript", "autoscaler", "app.js", "app.test.js"),
        script_world!("javascript", "failure-injector", "app.js", "app.test.js"),
        script_world!("javascript", "token-source", "app.js", "app.test.js"),
    ];
}
