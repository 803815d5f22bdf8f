"""JSON schemas of real packages.

Sources: pydantic models (openai, mcp, fastapi, ollama, geojson-pydantic), OpenAPI definitions (kubernetes-validate), and schema files
that packages ship (check-jsonschema, validate-pyproject, jsonschema-specifications). tests/schemas/requirements.txt pins them.
"""
import importlib
import importlib.util
import inspect
import json
import pathlib
import warnings

warnings.simplefilter("ignore")


def models(module_name):
    """The pydantic models that a module exports, by name."""
    import pydantic
    module = importlib.import_module(module_name)
    for name, value in sorted(vars(module).items()):
        if inspect.isclass(value) and issubclass(value, pydantic.BaseModel) and value is not pydantic.BaseModel and not name.startswith("_"):
            yield name, value


def pydantic_schemas(prefix, module_name, limit):
    count = 0
    for name, model in models(module_name):
        try:
            schema = model.model_json_schema()
        except Exception:  # a model with types that have no JSON schema, or with parameters
            continue
        if count == limit:
            return
        count += 1
        yield f"{prefix}.{name}", schema


def package_folder(name):
    return pathlib.Path(next(iter(importlib.util.find_spec(name).submodule_search_locations)))


def local_definitions(schema, definitions):
    """The definitions that a schema refers to, directly or not."""
    found, pending = {}, [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            ref = value.get("$ref")
            if isinstance(ref, str) and ref.startswith("#/$defs/") and ref[8:] not in found:
                found[ref[8:]] = definitions[ref[8:]]
                pending.append(definitions[ref[8:]])
            pending += value.values()
    return dict(sorted(found.items()))


def kubernetes_schemas():
    folders = sorted(package_folder("kubernetes_validate").glob("kubernetes-json-schema/v*-local"))
    definitions = json.loads((folders[-1] / "_definitions.json").read_text())["$defs"]
    names = ("Pod", "Deployment", "Service", "ConfigMap", "Secret", "Ingress", "CronJob", "Job", "StatefulSet", "DaemonSet", "Namespace", "Node",
             "PersistentVolumeClaim", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "HorizontalPodAutoscaler", "Container", "Probe",
             "PodDisruptionBudget", "StorageClass", "Lease", "Event", "CustomResourceDefinition", "ResourceQuota", "LimitRange", "EndpointSlice",
             "PriorityClass", "APIService")
    for name in names:
        full = next(key for key in sorted(definitions) if key.endswith(f".v1.{name}") or key.endswith(f".v2.{name}"))
        yield f"kubernetes.{name}", {"$ref": f"#/$defs/{full}", "$defs": local_definitions(definitions[full], definitions) | {full: definitions[full]}}


def file_schemas(prefix, package, pattern):
    for path in sorted(package_folder(package).glob(pattern)):
        name = path.parent.name if path.name == "metaschema.json" else path.name.removesuffix(".json").removesuffix(".schema")
        yield f"{prefix}.{name}", json.loads(path.read_text())


def collect():
    yield from pydantic_schemas("openai.chat", "openai.types.chat", 60)
    yield from pydantic_schemas("openai.responses", "openai.types.responses", 150)
    yield from pydantic_schemas("mcp", "mcp_types", 90)
    yield from pydantic_schemas("fastapi", "fastapi.openapi.models", 40)
    yield from pydantic_schemas("ollama", "ollama._types", 30)
    yield from pydantic_schemas("geojson", "geojson_pydantic", 20)
    yield from kubernetes_schemas()
    yield from file_schemas("schemastore", "check_jsonschema", "builtin_schemas/vendor/*.json")
    yield from file_schemas("pyproject", "validate_pyproject", "**/*.schema.json")
    yield from file_schemas("draft", "jsonschema_specifications", "schemas/*/metaschema.json")


def write(folder):
    for name, schema in collect():
        (folder / f"{name}.json").write_text(json.dumps(schema))
