"""Renders the Kustomize bases and the Helm chart of deploy/, and checks every object.

Prints one JSON object: what was rendered by name, each as a list of objects, under `rendered`, and
the chart's values under `values`. With --check also what is wrong with an object under `problems`,
and for each case of refused.yaml the chart's error, or null, under `refused`.

The chart is rendered by Helm's own library and the bases by kubectl, both out of packages
(clients/deploy.txt in tests/frontends). Objects are checked strictly, unknown fields included,
against the schemas of the oldest Kubernetes that has all of their fields and of a new one.
"""

import json
import pathlib
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml
from helm_python.chart import Chart
from helm_python.errors import HelmError

VERSIONS = ["1.29", "1.37"]
HERE = pathlib.Path(__file__).parent
DEPLOY = HERE.parent.parent / "deploy"
BASES = DEPLOY / "kustomize"

# Kinds of the Prometheus Operator, the Gateway API and KubeRay, which Kubernetes' schemas lack.
OTHERS = {
    "HTTPRoute": json.loads((HERE / "httproute.schema.json").read_text()),
    "PodMonitor": json.loads((HERE / "podmonitor.schema.json").read_text()),
    "RayJob": json.loads((HERE / "rayjob.schema.json").read_text()),
}


def problem(thing):
    """What is wrong with an object, if anything is."""
    if schema := OTHERS.get(thing["kind"]):
        errors = [one.message for one in jsonschema.Draft202012Validator(schema).iter_errors(thing)]
        return next(filter(None, [*errors, *map(problem, pods(thing))]), None)
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"Kubernetes {version}: {error.message} at {list(error.path)}"
        except kubernetes_validate.SchemaNotFoundError:
            return f"Kubernetes {version} has no {thing['apiVersion']} {thing['kind']}"
    return None


def pods(thing):
    """The pods of a RayJob, as objects of their own."""
    cluster = thing["spec"].get("rayClusterSpec", {})
    groups = [cluster.get("headGroupSpec"), *cluster.get("workerGroupSpecs", [])]
    for group in filter(None, groups):
        template = group["template"]
        yield {"apiVersion": "v1", "kind": "Pod", **template}


def kustomize(folder):
    """The objects of a kustomization."""
    kubectl = pathlib.Path(sys.executable).with_name("kubectl")
    done = subprocess.run([kubectl, "kustomize", folder], check=True, capture_output=True, text=True)
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def helm(chart, values):
    """The objects of the chart with these values."""
    rendered = chart.render(values=values, name="demo", namespace="default")
    return [
        thing
        for path, text in sorted(rendered.items())
        if path.endswith(".yaml")
        for thing in yaml.safe_load_all(text)
        if thing
    ]


def main():
    chart = Chart.load(DEPLOY / "helm" / "vcr")
    rendered = {}
    for folder in sorted(path.parent for path in BASES.glob("*/kustomization.yaml")):
        if yaml.safe_load((folder / "kustomization.yaml").read_text())["kind"] == "Kustomization":
            rendered[f"kustomize {folder.name}"] = kustomize(folder)
    rendered["kustomize overlay"] = kustomize(HERE / "overlay")
    rendered["helm defaults"] = helm(chart, {"image": {"repository": "vcr"}})
    for path in sorted((HERE / "values").glob("*.yaml")):
        rendered[f"helm {path.stem}"] = helm(chart, yaml.safe_load(path.read_text()))
    result = {"rendered": rendered, "values": chart.values}
    if sys.argv[1:] == ["--check"]:
        result |= {"problems": problems(rendered), "refused": refused(chart)}
    json.dump(result, sys.stdout)


def problems(rendered):
    """What is wrong with the objects of all renderings."""
    return [
        f"{name}: {thing['kind']} {thing['metadata']['name']}: {wrong}"
        for name, things in rendered.items()
        for thing in things
        if (wrong := problem(thing))
    ]


def refused(chart):
    """The errors of values that must be refused, by the text that they must have."""
    errors = {}
    for case in yaml.safe_load((HERE / "refused.yaml").read_text()):
        try:
            chart.render(values=case["values"], name="demo", namespace="default")
            errors[case["error"]] = None
        except HelmError as error:
            errors[case["error"]] = str(error)
    return errors


if __name__ == "__main__":
    main()
