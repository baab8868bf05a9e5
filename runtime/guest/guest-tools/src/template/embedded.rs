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

/// The files of a project in Python for its world.
pub(crate) struct PythonWorld {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) test: &'static str,
    pub(crate) config: &'static str,
}

macro_rules! python_world {
    ($name:literal) => {
        PythonWorld {
            name: $name,
            source: template!(concat!("python/worlds/", $name, "/app.py")),
            test: template!(concat!("python/worlds/", $name, "/test_app.py")),
            config: template!(concat!("python/worlds/", $name, "/config.json")),
        }
    };
}

impl RustWorld {
    /// Every world, in the order in which they are listed to people.
    pub(crate) const ALL: &'static [Self] = &[
        rust_world!("latency-model"),
        rust_world!("scheduler-policy"),
        rust_world!("router"),
        rust_world!("autoscaler"),
        rust_world!("failure-injector"),
        rust_world!("token-source"),
    ];
}

impl PythonWorld {
    /// Every world, in the same order.
    pub(crate) const ALL: &'static [Self] = &[
        python_world!("latency-model"),
        python_world!("scheduler-policy"),
        python_world!("router"),
        python_world!("autoscaler"),
        python_world!("failure-injector"),
        python_world!("token-source"),
    ];
}
