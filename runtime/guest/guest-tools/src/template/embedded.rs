//! The files of new projects, embedded in the program.

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Manifests of the SDK and of the crates that it needs.
pub(crate) const SDK_MANIFEST: &str = include_str!("../../../../../guest-sdk/Cargo.toml");
pub(crate) const FITTED_MANIFEST: &str = include_str!("../../../../latency/fitted/Cargo.toml");
pub(crate) const POLICY_MANIFEST: &str = include_str!("../../../../engine/policy/Cargo.toml");
pub(crate) const HARNESS_MANIFEST: &str = include_str!("../../../../../guest-sdk/harness/Cargo.toml");

macro_rules! template {
    ($path:expr) => {
        include_str!(concat!("../../templates/", $path))
    };
}

/// Files of every Rust project.
pub(crate) const RUST_FILES: &[(&str, &str)] = &[
    ("Cargo.toml", template!("rust/Cargo.toml")),
    ("README.md", template!("rust/README.md")),
    (".gitignore", template!("rust/gitignore")),
    ("tests/check.rs", template!("rust/check.rs")),
];

pub(crate) const FITTED_GUEST_MANIFEST: &str = template!("fitted/Cargo.toml");

/// Files of every Python project.
pub(crate) const PYTHON_FILES: &[(&str, &str)] = &[
    ("pyproject.toml", template!("python/pyproject.toml")),
    ("README.md", template!("python/README.md")),
    (".gitignore", template!("python/gitignore")),
];

/// Files of every JavaScript project.
pub(crate) const JAVASCRIPT_FILES: &[(&str, &str)] = &[
    ("package.json", template!("javascript/package.json")),
    ("jsconfig.json", template!("javascript/jsconfig.json")),
    ("README.md", template!("javascript/README.md")),
    (".gitignore", template!("javascript/gitignore")),
];

/// The source file and example config of a Rust project for one world.
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

/// The files of a Python or JavaScript project for one world.
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
    /// All worlds, in listing order.
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
    /// All worlds in Python, in the same order.
    pub(crate) const PYTHON: &'static [Self] = &[
        script_world!("python", "latency-model", "app.py", "test_app.py"),
        script_world!("python", "scheduler-policy", "app.py", "test_app.py"),
        script_world!("python", "router", "app.py", "test_app.py"),
        script_world!("python", "autoscaler", "app.py", "test_app.py"),
        script_world!("python", "failure-injector", "app.py", "test_app.py"),
        script_world!("python", "token-source", "app.py", "test_app.py"),
    ];

    /// All worlds in JavaScript, in the same order.
    pub(crate) const JAVASCRIPT: &'static [Self] = &[
        script_world!("javascript", "latency-model", "app.js", "app.test.js"),
        script_world!("javascript", "scheduler-policy", "app.js", "app.test.js"),
        script_world!("javascript", "router", "app.js", "app.test.js"),
        script_world!("javascript", "autoscaler", "app.js", "app.test.js"),
        script_world!("javascript", "failure-injector", "app.js", "app.test.js"),
        script_world!("javascript", "token-source", "app.js", "app.test.js"),
    ];
}
