//! Output of `tests/deploy/render.py` for `deploy/`.

use std::collections::BTreeMap;

use serde_json::Value;
use vcr_tests::{client, ended, root};

pub(crate) struct Rendered(Value);

/// A container, and where it comes from.
pub(crate) struct Container<'a> {
    /// Names of the rendering and of the pod's owner, for error messages.
    pub(crate) place: String,
    pub(crate) pod: &'a Value,
    pub(crate) value: &'a Value,
}

/// Renders all objects. `None`, with a message, if the renderers are not installed.
pub(crate) fn rendered() -> Option<Rendered> {
    script(&[])
}

/// Like [`rendered`], with the problems in the objects and the inputs that the chart refuses.
pub(crate) fn checked() -> Option<Rendered> {
    script(&["--check"])
}

fn script(args: &[&str]) -> Option<Rendered> {
    let script = root().join("tests/deploy/render.py").display().to_string();
    let said = ended(client("deploy")?.python(&[&[script.as_str()], args].concat()));
    Some(Rendered(serde_json::from_str(&said).expect("the script prints JSON")))
}

impl Rendered {
    pub(crate) fn part(&self, name: &str) -> &Value {
        &self.0[name]
    }

    /// The objects, by the name of their rendering.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Vec<Value>)> {
        let all = self.0["rendered"].as_object().expect("renderings");
        all.iter().map(|(name, objects)| (name.as_str(), objects.as_array().expect("objects")))
    }

    /// The objects of one rendering.
    pub(crate) fn of(&self, name: &str) -> &Vec<Value> {
        self.0["rendered"][name].as_array().unwrap_or_else(|| panic!("`{name}` was rendered"))
    }

    /// All containers, including sidecars.
    pub(crate) fn containers(&self) -> Vec<Container<'_>> {
        self.all().flat_map(|(name, objects)| containers(name, objects)).collect()
    }
}

pub(crate) fn containers<'a>(name: &str, objects: &'a [Value]) -> Vec<Container<'a>> {
    let mut all = Vec::new();
    for object in objects {
        let pod = &object["spec"]["template"]["spec"];
        for kind in ["initContainers", "containers"] {
            for value in pod[kind].as_array().into_iter().flatten() {
                let place = format!("{name}: {} {}", text(&object["metadata"]["name"]), text(&value["name"]));
                all.push(Container { place, pod, value });
            }
        }
    }
    all
}

impl Container<'_> {
    pub(crate) fn is_vcr(&self) -> bool {
        let image = text(&self.value["image"]);
        let name = image.rsplit('/').next().unwrap_or(image);
        name.split(':').next() == Some("vcr")
    }

    pub(crate) fn args(&self) -> Vec<String> {
        let args = self.value["args"].as_array().into_iter().flatten();
        args.map(|arg| text(arg).to_owned()).collect()
    }

    /// Names of the environment variables that the container sets.
    pub(crate) fn variables(&self) -> Vec<&str> {
        let env = self.value["env"].as_array().into_iter().flatten();
        env.map(|variable| text(&variable["name"])).collect()
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is a text"))
}

pub(crate) fn labels(value: &Value) -> BTreeMap<&str, &str> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), text(value))).collect()
}
