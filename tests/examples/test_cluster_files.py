"""The files for clusters are what Ray, Kubernetes and Slurm read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.scripts.scripts import start

from parallel_agents.core.config import Parallel

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def schema() -> Any:
    return json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())


def test_the_cluster_file_is_valid_for_the_installed_ray_and_scales() -> None:
    cluster = read("ray-cluster.yaml")
    jsonschema.validate(cluster, schema())
    nodes = cluster["available_node_types"]
    assert cluster["head_node_type"] in nodes
    assert nodes["worker"]["min_workers"] < nodes["worker"]["max_workers"] <= cluster["max_workers"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "max_worker": 3}, schema())


def test_the_kubernetes_manifest_has_a_head_and_workers_that_scale() -> None:
    manifest = read("kuberay.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    spec = manifest["spec"]
    assert spec["enableInTreeAutoscaling"]
    [workers] = spec["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (spec["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_slurm_script_is_valid_and_names_options_that_exist() -> None:
    script = FOLDER / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True, timeout=10)
    Parallel(backend="ray", address="10.0.0.1:6379", num_workers=24)
    known = {option for parameter in start.params for option in parameter.opts}
    lines = [line.partition("ray start")[2] for line in script.read_text().splitlines() if "ray start" in line]
    used = {word.partition("=")[0] for line in lines for word in line.split() if word.startswith("--")}
    assert used >= {"--head", "--address"}
    assert used <= known
