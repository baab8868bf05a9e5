//! The Helm chart and the Kustomize bases of `deploy/`: Kubernetes accepts every object, pods have few rights,
//! selectors select something, and `vcr` accepts every command.

mod commands;
mod rendered;
mod together;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use vcr_tests::root;

use rendered::{Container, checked, containers, labels, rendered, text};

#[test]
fn kubernetes_accepts_every_object() {
    let Some(rendered) = checked() else { return };
    let problems = rendered.part("problems").as_array().expect("a list");
    assert!(problems.is_empty(), "{problems:#?}");
    let kinds = |name: &str| -> BTreeSet<&str> { rendered.of(name).iter().map(|it| text(&it["kind"])).collect() };
    assert_eq!(kinds("kustomize server"), ["Deployment", "NetworkPolicy", "Service"].into());
    assert_eq!(kinds("kustomize fleet"), ["NetworkPolicy", "Service", "StatefulSet"].into());
    assert_eq!(kinds("kustomize sweep"), ["Job", "NetworkPolicy", "PersistentVolumeClaim"].into());
    assert_eq!(kinds("kustomize ray"), ["PersistentVolumeClaim", "RayJob"].into());
    assert_eq!(
        kinds("helm everything"),
        [
            "ConfigMap",
            "Deployment",
            "HTTPRoute",
            "HorizontalPodAutoscaler",
            "Ingress",
            "Job",
            "NetworkPolicy",
            "PersistentVolumeClaim",
            "PodDisruptionBudget",
            "PodMonitor",
            "Service",
            "StatefulSet"
        ]
        .into()
    );
    assert_eq!(kinds("helm bare"), ["Deployment", "Job", "PodMonitor", "Service", "StatefulSet"].into());
}

#[test]
fn names_of_objects_are_unique() {
    let Some(rendered) = rendered() else { return };
    for (name, objects) in rendered.all() {
        let id = |it: &Value| (text(&it["kind"]).to_owned(), text(&it["metadata"]["name"]).to_owned());
        let unique: BTreeSet<_> = objects.iter().map(id).collect();
        assert_eq!(unique.len(), objects.len(), "{name}");
    }
}

#[test]
fn pods_need_no_rights() {
    let Some(rendered) = rendered() else { return };
    let all = rendered.containers();
    assert!(all.iter().filter(|it| it.is_vcr()).count() > 20, "the containers were not found");
    for it in &all {
        let Container { place, pod, value } = it;
        assert_eq!(pod["automountServiceAccountToken"], false, "{place}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{place}");
        assert_eq!(pod["securityContext"]["runAsUser"], 1000, "{place}: the user of the image");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{place}");
        // The user supplies containers in values.
        if !it.is_vcr() && !text(&value["image"]).starts_with("vllm/") {
            continue;
        }
        let context = &value["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{place}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{place}");
        assert_eq!(context["capabilities"]["drop"][0], "ALL", "{place}");
        assert!(value["resources"]["requests"]["cpu"].is_string() || value["resources"]["requests"]["cpu"].is_u64());
        assert_eq!(value["resources"]["requests"]["memory"], value["resources"]["limits"]["memory"], "{place}");
        let mounts = value["volumeMounts"].as_array().expect("mounts");
        let volumes = pod["volumes"].as_array().expect("volumes");
        for mount in mounts {
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{place}: {mount}");
        }
        assert!(mounts.iter().any(|mount| mount["mountPath"] == "/tmp"), "{place}: a root that cannot be written");
    }
}

#[test]
fn servers_have_probes_of_paths_that_they_serve() {
    let Some(rendered) = rendered() else { return };
    let mut seen = 0;
    for it in rendered.containers().iter().filter(|it| it.is_vcr()) {
        let probed = |probe: &str| it.value[probe]["httpGet"]["path"].as_str();
        match it.args()[0].as_str() {
            "serve" => {
                assert_eq!(probed("startupProbe"), Some("/ready"), "{}", it.place);
                assert_eq!(probed("readinessProbe"), Some("/ready"), "{}", it.place);
                assert_eq!(probed("livenessProbe"), Some("/health"), "{}", it.place);
            }
            "play" => assert_eq!(probed("livenessProbe"), Some("/metrics"), "{}", it.place),
            _ => continue,
        }
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let port = &it.value[probe]["httpGet"]["port"];
            let ports = it.value["ports"].as_array().expect("ports");
            assert!(port.is_null() || ports.iter().any(|it| it["name"] == *port), "{}: {port}", it.place);
        }
        seen += 1;
    }
    assert!(seen > 10, "{seen} servers");
}

/// Whether a pod of a rendering has all of these labels.
fn selects(objects: &[Value], wanted: &Value) -> bool {
    let wanted = labels(wanted);
    let templates = objects.iter().map(|it| labels(&it["spec"]["template"]["metadata"]["labels"]));
    !wanted.is_empty()
        && templates.into_iter().any(|has| wanted.iter().all(|(name, value)| has.get(name) == Some(value)))
}

#[test]
fn selectors_select() {
    let Some(rendered) = rendered() else { return };
    let mut seen = BTreeSet::new();
    for (name, objects) in rendered.all() {
        for object in objects {
            let (kind, spec) = (text(&object["kind"]), &object["spec"]);
            let selectors = match kind {
                "Service" => vec![&spec["selector"]],
                "Deployment" | "StatefulSet" | "PodDisruptionBudget" | "PodMonitor" => {
                    vec![&spec["selector"]["matchLabels"]]
                }
                "NetworkPolicy" => {
                    let peers = ["ingress", "egress"].map(|rules| spec[rules].as_array().into_iter().flatten());
                    let peers = peers.into_iter().flatten().flat_map(|rule| [&rule["from"], &rule["to"]]);
                    let peers = peers.flat_map(|peers| peers.as_array().into_iter().flatten());
                    // An empty selector means all pods of the namespace. Pods of other namespaces are not part of
                    // the chart.
                    let peers = peers.filter(|peer| peer["namespaceSelector"].is_null());
                    let peers = peers.map(|peer| &peer["podSelector"]["matchLabels"]).filter(|it| !it.is_null());
                    std::iter::once(&spec["podSelector"]["matchLabels"]).chain(peers).collect()
                }
                _ => Vec::new(),
            };
            for selector in selectors {
                assert!(selects(objects, selector), "{name}: {kind} {selector} selects no pod");
                seen.insert(kind);
            }
        }
    }
    let kinds = ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service", "StatefulSet"];
    assert_eq!(seen, kinds.into());
}

#[test]
fn network_policies_cover_every_pod() {
    let Some(rendered) = rendered() else { return };
    // The rendering `helm bare` turns the policies off.
    for (name, objects) in rendered.all().filter(|(name, _)| *name != "helm bare") {
        let all = || objects.iter().filter(|it| it["kind"] == "NetworkPolicy");
        // Another policy for the same pods admits further peers.
        let admits_only = |it: &&Value| it["spec"]["policyTypes"] == serde_json::json!(["Ingress"]);
        let policies = || all().filter(|it| !admits_only(it));
        for object in objects.iter().filter(|it| it["spec"]["template"].is_object()) {
            let has = labels(&object["spec"]["template"]["metadata"]["labels"]);
            let covers = |policy: &Value| {
                let wanted = labels(&policy["spec"]["podSelector"]["matchLabels"]);
                wanted.iter().all(|(name, value)| has.get(name) == Some(value))
            };
            assert!(policies().any(covers), "{name}: no policy for {}", object["metadata"]["name"]);
        }
        for policy in policies() {
            assert_eq!(policy["spec"]["policyTypes"], serde_json::json!(["Ingress", "Egress"]), "{name}");
        }
    }
}

#[test]
fn ports_of_services_and_policies_are_those_of_containers() {
    let Some(rendered) = rendered() else { return };
    for (name, objects) in rendered.all() {
        let all = containers(name, objects);
        let ports: Vec<&Value> = all.iter().flat_map(|it| it.value["ports"].as_array().into_iter().flatten()).collect();
        for service in objects.iter().filter(|it| it["kind"] == "Service") {
            for port in service["spec"]["ports"].as_array().expect("ports") {
                assert!(ports.iter().any(|it| it["name"] == port["targetPort"]), "{name}: {port}");
            }
        }
        for policy in objects.iter().filter(|it| it["kind"] == "NetworkPolicy") {
            for rule in policy["spec"]["ingress"].as_array().into_iter().flatten() {
                for port in rule["ports"].as_array().expect("ports") {
                    let known = |it: &&&Value| it["name"] == port["port"] || it["containerPort"] == port["port"];
                    assert!(ports.iter().any(|it| known(&it)), "{name}: {port}");
                }
            }
        }
    }
}

/// Prometheus and the controllers of an Ingress or a Gateway run in other namespaces.
#[test]
fn policies_admit_prometheus_and_controllers() {
    let Some(rendered) = rendered() else { return };
    let ports_for = |objects: &[Value], peer: &Value, component: Option<&str>| -> BTreeSet<String> {
        let of_pods = |it: &&Value| {
            let selector = &it["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"];
            it["kind"] == "NetworkPolicy" && selector.as_str() == component
        };
        let rules = objects.iter().filter(of_pods).flat_map(|it| it["spec"]["ingress"].as_array().expect("rules"));
        let admitting = rules.filter(|rule| rule["from"].as_array().is_some_and(|from| from.contains(peer)));
        let ports = admitting.flat_map(|rule| rule["ports"].as_array().expect("ports"));
        ports.map(|port| text(&port["port"]).to_owned()).collect()
    };
    let prometheus = serde_json::json!({
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    });
    for name in ["helm everything", "kustomize overlay"] {
        let ports = ports_for(rendered.of(name), &prometheus, None);
        assert_eq!(ports, ["http", "metrics"].map(str::to_owned).into(), "{name}");
    }
    let anybody = serde_json::json!({"namespaceSelector": {}});
    let exposed = |component| ports_for(rendered.of("helm everything"), &anybody, Some(component));
    for component in ["server", "fleet", "decode"] {
        assert_eq!(exposed(component), ["http".to_owned()].into(), "{component}");
    }
    for component in ["prefill", "recorder"] {
        assert!(exposed(component).is_empty(), "{component} has neither Ingress nor HTTPRoute");
    }
}

/// Routes name existing Services. Autoscalers name existing workloads, which then set no number of replicas.
#[test]
fn routes_and_autoscalers_name_existing_objects() {
    let Some(rendered) = rendered() else { return };
    let objects = rendered.of("helm everything");
    let find = |kind: &Value, name: &Value| {
        let it = objects.iter().find(|it| it["kind"] == *kind && it["metadata"]["name"] == *name);
        it.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    };
    let service = Value::from("Service");
    let mut seen = 0;
    for object in objects {
        let spec = &object["spec"];
        match text(&object["kind"]) {
            "HorizontalPodAutoscaler" => {
                let target = find(&spec["scaleTargetRef"]["kind"], &spec["scaleTargetRef"]["name"]);
                assert!(target["spec"]["replicas"].is_null(), "{target:#}");
            }
            "Ingress" => {
                let backend = &spec["rules"][0]["http"]["paths"][0]["backend"]["service"];
                let ports = &find(&service, &backend["name"])["spec"]["ports"];
                assert_eq!(ports[0]["port"], backend["port"]["number"]);
            }
            "HTTPRoute" => {
                let backend = &spec["rules"][0]["backendRefs"][0];
                assert_eq!(find(&service, &backend["name"])["spec"]["ports"][0]["port"], backend["port"]);
            }
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 7, "three autoscalers, two Ingresses and two HTTPRoutes");
}

/// Fields of `scheduling` replace the chart's fields one by one, even if they are empty lists.
#[test]
fn workloads_have_scheduling_of_their_own() {
    let Some(rendered) = rendered() else { return };
    let pod = |name: &str| {
        let objects = rendered.of("helm everything");
        let it = objects.iter().find(|it| it["metadata"]["name"] == name && it["spec"]["template"].is_object());
        &it.unwrap_or_else(|| panic!("{name} was rendered"))["spec"]["template"]["spec"]
    };
    let (server, fleet) = (pod("demo-server"), pod("demo-fleet"));
    assert_eq!(server["nodeSelector"]["kubernetes.io/arch"], "arm64");
    assert_eq!(fleet["nodeSelector"]["kubernetes.io/arch"], "amd64");
    assert!(server["tolerations"].is_null() && fleet["tolerations"].is_array());
    assert!(server["topologySpreadConstraints"].is_array() && fleet["topologySpreadConstraints"].is_null());
    assert_eq!((&server["affinity"], &server["priorityClassName"]), (&fleet["affinity"], &fleet["priorityClassName"]));
}

/// Names of all values, including nested ones.
fn value_names(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        value_names(inner, &name, into);
        into.insert(name);
    }
}

/// Names of all properties in a schema, whose shared parts are in `definitions`.
fn property_names(whole: &Value, schema: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    let schema = match schema["$ref"].as_str() {
        Some(place) => &whole["definitions"][place.trim_start_matches("#/definitions/")],
        None => schema,
    };
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        property_names(whole, inner, &name, into);
        into.insert(name);
    }
}

#[test]
fn the_schema_of_values_has_every_value() {
    let Some(rendered) = rendered() else { return };
    let chart = root().join("deploy/helm/vcr");
    let schema = fs::read_to_string(chart.join("values.schema.json")).expect("a schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let (mut values, mut properties) = (BTreeSet::new(), BTreeSet::new());
    value_names(rendered.part("values"), "", &mut values);
    property_names(&schema, &schema, "", &mut properties);
    // Helm passes `global` to every chart. Objects that Kubernetes defines have no properties in this schema.
    properties.remove("global");
    let foreign = |name: &String| {
        let parts = ["resources.", "ecurityContext.", "podSelector", "namespaceSelector"];
        parts.iter().any(|part| name.contains(part))
    };
    values.retain(|name| !foreign(name));
    // These values are empty by default.
    properties.retain(|name| !name.contains(".scheduling."));
    assert_eq!(values, properties);
}

#[test]
fn values_that_cannot_be_are_refused_by_name() {
    let Some(rendered) = checked() else { return };
    let refused = rendered.part("refused").as_object().expect("cases");
    assert!(refused.len() > 5, "{refused:?}");
    for (wanted, error) in refused {
        assert!(error.as_str().is_some_and(|error| error.contains(wanted)), "{wanted}: {error}");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = fs::read_to_string(root().join("deploy/helm/vcr/Chart.yaml")).expect("a chart");
    assert!(chart.contains(&format!("appVersion: \"{}\"\n", env!("CARGO_PKG_VERSION"))), "{chart}");
}

#[test]
fn chart_and_bases_start_the_same_commands() {
    let Some(rendered) = rendered() else { return };
    let commands = |name: &str| -> BTreeSet<BTreeSet<String>> {
        let all = containers(name, rendered.of(name));
        all.iter().filter(|it| it.is_vcr()).map(|it| it.args().into_iter().collect()).collect()
    };
    assert_eq!(commands("kustomize server"), commands("helm defaults"));
    let of_bases: BTreeSet<_> = ["server", "fleet", "pd", "recorder", "sweep"]
        .iter()
        .flat_map(|it| commands(&format!("kustomize {it}")))
        .collect();
    assert_eq!(of_bases, commands("helm workloads"));
}
