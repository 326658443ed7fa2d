"""Turn manifests of servers (Kubernetes, compose, Helm) into the shell commands that their containers run.

    a container of a pod      its environment, and command and args; args alone stand behind the image's own program
    docker compose            the same of every service
    values of a Helm chart    the model and the options of vLLM's production stack

Each becomes the text of a script, which the readers of the engines read like any other. `REPLICAS` and `CHIPS` of such
a script are what the manifest asks for. Templates (`{{ ... }}`) are not rendered: such a file is no YAML, and unread.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError
from ridgeline.core.files import Table
from ridgeline.targets.imports.option_reader import tables
from ridgeline.targets.target import Files

CHIPS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "huawei.com/Ascend910", "habana.ai/gaudi")
SHELLS = ("sh", "bash")
REFERENCE = re.compile(r"\$\((\w+)\)")  # of Kubernetes to a variable of the container
MOST_DOCUMENTS = 64
MOST_CONTAINERS = 64
DEEPEST = 24
# options of production-stack's vllmConfig -> options of `vllm serve`
VLLM_CONFIG = {
    "tensorParallelSize": "tensor-parallel-size",
    "pipelineParallelSize": "pipeline-parallel-size",
    "maxModelLen": "max-model-len",
    "dtype": "dtype",
    "gpuMemoryUtilization": "gpu-memory-utilization",
    "maxNumSeqs": "max-num-seqs",
    "maxLoras": "max-loras",
}
VLLM_SWITCHES = {"enablePrefixCaching": "enable-prefix-caching", "enableChunkedPrefill": "enable-chunked-prefill"}


def manifest_scripts(files: Files) -> dict[str, str]:
    """A script for each container that a manifest among the files describes, by a name of its own.

    >>> pod = "kind: Pod\\nspec: {containers: [{image: a/vllm-openai:v1, args: [--model, m, -tp, '2']}]}"
    >>> manifest_scripts({"pod.yaml": pod})["pod.yaml#0"].splitlines()[-1]
    'docker run vllm-openai --model m -tp 2'
    """
    scripts: dict[str, str] = {}
    for table in _documents(files):
        found = (*_pods(table.data, 1, 0), *_services(table.data), *_stacks(table.data))
        for text in islice(found, MOST_CONTAINERS):
            scripts[f"{table.source}#{len(scripts)}"] = text
    return scripts


def _documents(files: Files) -> Iterator[Table]:
    """The tables of every YAML file, which may hold several documents."""
    for name, text in files.items():
        if name.endswith((".yaml", ".yml")):
            parts = re.split(r"^---.*$", text, flags=re.MULTILINE)[:MOST_DOCUMENTS]
            for part in parts if len(parts) > 1 else (text,):
                try:
                    yield from tables({name: part}, ".yaml", ".yml")
                except InputError:  # a template, or no table: nothing that could be read
                    continue


def _pods(data: object, replicas: int, depth: int) -> Iterator[str]:
    """Scripts of the containers below a value; `replicas` of the nearest object that says them."""
    if depth > DEEPEST:
        return
    if isinstance(data, Mapping):
        stated = data.get("replicas")
        replicas = stated if type(stated) is int and 0 < stated < 10**6 else replicas
        containers = data.get("containers")
        if isinstance(containers, list):
            yield from (_container(one, replicas) for one in containers if isinstance(one, Mapping))
        for key, value in data.items():
            if key not in ("containers", "initContainers"):
                yield from _pods(value, replicas, depth + 1)
    elif isinstance(data, list):
        for value in data:
            yield from _pods(value, replicas, depth + 1)


def _services(data: JsonMapping) -> Iterator[str]:
    """Scripts of the services of a compose file."""
    services = data.get("services")
    for service in services.values() if isinstance(services, Mapping) else ():
        if isinstance(service, Mapping) and ("image" in service or "command" in service):
            deploy = service.get("deploy")
            replicas = deploy.get("replicas", 1) if isinstance(deploy, Mapping) else 1
            parts = {"command": service.get("entrypoint"), "args": service.get("command")}
            yield _container({**service, **parts}, replicas if type(replicas) is int else 1)


def _container(container: JsonMapping, replicas: int) -> str:
    """The script of one container."""
    command, arguments = _words(container.get("command")), _words(container.get("args"))
    lines = [f"export {name}={shlex.quote(value)}" for name, value in _environment(container)]
    lines += [f"REPLICAS={replicas}", f"CHIPS={_chips(container)}"]
    if command and command[0].rpartition("/")[2] in SHELLS and any(word in ("-c", "-lc", "-ec") for word in command):
        text = " ".join(arguments) if command[-1].startswith("-") else command[-1]
        return "\n".join((*lines, REFERENCE.sub(r"${\1}", text))) + "\n"
    image = str(container.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[0]
    words = [*command, *arguments] if command else ["docker", "run", image or "image", *arguments]
    quoted = (shlex.quote(word) for word in words)
    return "\n".join((*lines, " ".join(_with_references(word) for word in quoted))) + "\n"


def _with_references(word: str) -> str:
    """A quoted word whose `$(NAME)` the shell fills in."""
    if not (word.startswith("'") and REFERENCE.search(word)):
        return word
    inner = REFERENCE.sub(r"${\1}", word[1:-1])
    return f'"{inner}"'


def _words(value: object) -> list[str]:
    """A command as words, of a list or of one string."""
    if isinstance(value, str):
        try:
            return shlex.split(value, comments=True)
        except ValueError:
            return []
    return [str(word) for word in value] if isinstance(value, list) else []


def _environment(container: JsonMapping) -> Iterator[tuple[str, str]]:
    """Variables with plain values, of Kubernetes' list, or of compose's table or list."""
    variables = container.get("env", container.get("environment"))
    if isinstance(variables, Mapping):
        pairs = [(str(name), value) for name, value in variables.items()]
    elif isinstance(variables, list):
        pairs = [
            (str(one.get("name")), one.get("value")) if isinstance(one, Mapping) else str(one).partition("=")[::2]
            for one in variables
        ]
    else:
        pairs = []
    return ((name, str(value)) for name, value in pairs if name.isidentifier() and isinstance(value, (str, int, float)))


def _chips(container: JsonMapping) -> int:
    """Chips that a container asks for; 0 where it does not say."""
    resources = container.get("resources")
    for kind in ("limits", "requests"):
        asked = resources.get(kind) if isinstance(resources, Mapping) else None
        counts = [str(asked.get(name, "")) for name in CHIPS] if isinstance(asked, Mapping) else []
        for count in counts:
            if count.isdigit() and len(count) < 6:
                return int(count)
    return 0


def _stacks(data: JsonMapping) -> Iterator[str]:
    """Scripts of the models of a production stack's values."""
    engine = data.get("servingEngineSpec")
    models = engine.get("modelSpec") if isinstance(engine, Mapping) else None
    for model in models if isinstance(models, list) else ():
        if not isinstance(model, Mapping) or "modelURL" not in model:
            continue
        config = model.get("vllmConfig")
        config = config if isinstance(config, Mapping) else {}
        words = ["vllm", "serve", str(model["modelURL"])]
        for key, value in config.items():
            if key in VLLM_SWITCHES:
                words += [f"--{VLLM_SWITCHES[key]}"] if value is True else [f"--no-{VLLM_SWITCHES[key]}"]
            elif key == "extraArgs":
                words += _words(value)
            elif key not in ("v1", "v0"):  # an option that vLLM lacks is named by the reader
                words += [f"--{VLLM_CONFIG.get(key, key)}", str(value)]
        replicas = model.get("replicaCount", 1)
        asked = model.get("requestGPU", 0)
        chips = asked if type(asked) is int else 0
        lines = (f"REPLICAS={replicas if type(replicas) is int else 1}", f"CHIPS={chips}", shlex.join(words))
        yield "\n".join(lines) + "\n"
