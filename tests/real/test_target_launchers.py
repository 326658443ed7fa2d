"""Launch files against what schedulers publish: Kubeflow's models, the CRDs of JobSet and Volcano, SkyPilot, Azure ML.

Skipped where a package is absent; `make test-targets` installs `kubeflow-trainer-api`, `skypilot` and `azure-ai-ml`.
RIDGELINE_CRDS names a folder of CRD files (`jobset.x-k8s.io_jobsets.yaml`, `batch.volcano.sh_jobs.yaml`,
`trainer.kubeflow.org_trainjobs.yaml` of the projects' repositories), which are held against every field written.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import ridgeline

ASKED = {"time": "4h", "partition": "gpu", "image": "repo/image:1", "output": "results"}
CRDS = os.environ.get("RIDGELINE_CRDS", "")
NAMES = {
    "jobset": "jobset.x-k8s.io_jobsets.yaml",
    "volcano": "batch.volcano.sh_jobs.yaml",
    "trainjob": "trainer.kubeflow.org_trainjobs.yaml",
}
SYSTEMS = (("64xh100-sxm", "torchtitan"), ("32xmi300x", "torchtitan"), ("tpu-v5p:4x4x4", "maxtext"))


def there(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def written(launcher: str, system: str = "64xh100-sxm", to: str = "torchtitan", job: dict[str, str] = ASKED) -> str:
    table = {"model": "llama3-8b", "system": system, "workload": {"seq": 8192, "global_batch": 256}}
    scenario = ridgeline.scenario({**table, "plan": {"shard": "zero3"}})
    (text,) = (
        text
        for name, text in ridgeline.export(scenario, to=to, launcher=launcher, job=job).files.items()
        if launcher in name
    )
    return text


def manifest(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)["items"][1]
    return found


@pytest.mark.skipif(not there("kubeflow-trainer-api"), reason="kubeflow-trainer-api is not installed")
@pytest.mark.parametrize(("system", "to"), SYSTEMS)
def test_kubeflows_models_keep_every_field(system: str, to: str) -> None:
    """A field that the model does not know would not come back from it."""
    from kubeflow_trainer_api import models

    for launcher, kind in (("trainjob", models.TrainerV1alpha1TrainJob), ("jobset", models.JobsetV1alpha2JobSet)):
        table = manifest(written(launcher, system, to))
        assert kind.from_dict(table).to_dict() == table


@pytest.mark.skipif(not Path(CRDS).is_dir() or not CRDS, reason="RIDGELINE_CRDS names no folder")
@pytest.mark.parametrize("launcher", sorted(NAMES))
@pytest.mark.parametrize(("system", "to"), SYSTEMS)
def test_every_field_is_of_the_published_crd(launcher: str, system: str, to: str) -> None:
    crd = yaml.safe_load((Path(CRDS) / NAMES[launcher]).read_text(encoding="utf-8"))
    table = manifest(written(launcher, system, to))
    version = table["apiVersion"].rpartition("/")[2]
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == version)
    assert crd["spec"]["names"]["kind"] == table["kind"]
    assert list(strange(table, schema)) == []


def strange(value: Any, schema: dict[str, Any], path: str = "") -> Any:
    """Fields that a schema does not have, or that are of another type."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = schema.get("type")
    if kind in kinds and not isinstance(value, kinds[kind]) and not schema.get("x-kubernetes-int-or-string"):
        yield f"{path} is no {kind}"
    if isinstance(value, dict):
        for key, inner in value.items():
            known, more = schema.get("properties", {}), schema.get("additionalProperties")
            if key in known:
                yield from strange(inner, known[key], f"{path}.{key}")
            elif isinstance(more, dict):
                yield from strange(inner, more, f"{path}.{key}")
            elif path != ".metadata" and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}.{key}"
    if isinstance(value, list):
        for inner in value:
            yield from strange(inner, schema.get("items", {}), f"{path}[]")


@pytest.mark.skipif(not there("skypilot"), reason="skypilot is not installed")
@pytest.mark.parametrize("job", [{}, {"time": "1h", "image": "a/b:1"}, {**ASKED, "output": "s3://bucket"}])
def test_skypilots_schema_accepts(job: dict[str, str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("sky.utils.schemas")
    task = yaml.safe_load(written("skypilot", job=job))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


@pytest.mark.skipif(not there("azure-ai-ml"), reason="azure-ai-ml is not installed")
def test_azure_loads_the_job(tmp_path: Path) -> None:
    ml = pytest.importorskip("azure.ai.ml")
    (tmp_path / "azureml.yaml").write_text(written("azureml"), encoding="utf-8")
    job = ml.load_job(tmp_path / "azureml.yaml")
    assert (job.resources.instance_count, job.limits.timeout, job.compute) == (8, 14400, "gpu")
    assert job.distribution.process_count_per_instance == 1
