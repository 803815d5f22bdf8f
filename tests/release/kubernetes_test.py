"""The files of release/kubernetes: valid for the API's JSON schemas and for KServe's, and their containers run as written.

    python3 kubernetes_test.py MLXCEL MODEL

The schemas come from the package kubernetes-validate (tests/schemas/requirements.txt), those of KServe from its Go module. A
container runs with its command line, user and security context, in namespaces of this machine, and pulls a signed bundle from
the registry of tests/support.
"""
import functools, glob, importlib.util, json, os, shutil, signal, subprocess, sys, tempfile, time, unittest, urllib.request

try:
    import jsonschema, yaml

    SCHEMAS = os.path.dirname(importlib.util.find_spec("kubernetes_validate").origin) + "/kubernetes-json-schema/v1.34.0-local-strict"
except (ImportError, AttributeError):
    print("skipped: the packages of tests/schemas/requirements.txt are not here: ./build.sh test --all fetches them")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MLXCEL, MODEL = (os.path.abspath(path) for path in (sys.argv.pop(1), sys.argv.pop(1)))
KSERVE, KSERVE_SUM = "github.com/kserve/kserve@v0.16.0", "h1:kDkcAU5VMiZf4zhdDXH+UdAIgzXhs10GMv0d9r4qvTs="
CRDS = ["llmisvc/serving.kserve.io_llminferenceservices.yaml", "serving.kserve.io_servingruntimes.yaml", "serving.kserve.io_inferenceservices.yaml"]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CACHE, TRUSTED = "/home/mlxcel/.cache", "/etc/mlxcel/trusted"


def read_all():
    documents = []
    for path in sorted(glob.glob(ROOT + "/release/kubernetes/*.yaml")):
        with open(path) as file:
            documents += yaml.load_all(file, LOADER)
    return documents


def is_kserve(document):
    return document["apiVersion"].startswith("serving.kserve.io/")


def find(kind):
    (document,) = [document for document in read_all() if document["kind"] == kind]
    return document


def close(schema):
    """Refuses fields that a schema does not list, as the API server does."""
    if isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            close(value)
    elif isinstance(schema, list):
        for value in schema:
            close(value)


def check(document, schema):
    """jsonschema.validate would first check the schema, which takes longer than everything else here."""
    jsonschema.validators.validator_for(schema)(schema).validate(document)


@functools.cache
def read_schema(name):
    with open("%s/%s.json" % (SCHEMAS, name)) as file:
        return json.loads(file.read().replace('"/api/_definitions.json#', '"#'))


def validate(document):
    """Against the schema of Kubernetes 1.34, which lists every field."""
    group, _, version = document["apiVersion"].rpartition("/")
    name = "-".join(part for part in (document["kind"].lower(), group.split(".")[0], version) if part)
    schema = read_schema(name)
    check(document, {"properties": schema["properties"], "additionalProperties": False, "$defs": read_schema("_definitions")["$defs"]})


class Schemas(unittest.TestCase):
    def test_every_file_is_valid_for_kubernetes(self):
        kinds = []
        for document in read_all():
            if not is_kserve(document):
                validate(document)
                kinds.append(document["kind"])
        self.assertEqual(sorted(kinds), sorted(["ConfigMap", "ServiceAccount", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"]))

    def test_a_wrong_field_is_found(self):
        wrong = find("Deployment")
        wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with self.assertRaises(jsonschema.ValidationError):
            validate(wrong)

    def test_kserve_resources_are_valid_for_its_definitions(self):
        if not shutil.which("go"):
            self.skipTest("go is not installed: KServe's definitions come from its Go module")
        module = subprocess.run(["go", "mod", "download", "-json", KSERVE], capture_output=True, text=True, cwd=tempfile.gettempdir())
        if module.returncode:
            self.skipTest("KServe's Go module cannot be fetched: " + (module.stdout + module.stderr)[-300:])
        module = json.loads(module.stdout)
        self.assertEqual(module["Sum"], KSERVE_SUM)
        schemas = {}
        for name in CRDS:
            with open(os.path.join(module["Dir"], "config/crd/full", name)) as file:
                definition = yaml.load(file, LOADER)["spec"]
            for version in definition["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                close(schema["properties"]["spec"])
                schemas["%s/%s" % (definition["group"], version["name"]), definition["names"]["kind"]] = schema
        checked = [document for document in read_all() if is_kserve(document)]
        for document in checked:
            check(document, schemas[document["apiVersion"], document["kind"]])
        self.assertEqual(len(checked), 3)
        checked[0]["spec"]["containers"][0]["securityContekt"] = {}
        with self.assertRaises(jsonschema.ValidationError):
            check(checked[0], schemas[checked[0]["apiVersion"], checked[0]["kind"]])


def containers():
    pod = find("Deployment")["spec"]["template"]["spec"]
    return pod["initContainers"] + pod["containers"] + find("ServingRuntime")["spec"]["containers"] + find("LLMInferenceService")["spec"]["template"]["containers"]


class Names(unittest.TestCase):
    def test_selectors_and_ports_fit_together(self):
        template = find("Deployment")["spec"]["template"]
        labels, container = template["metadata"]["labels"], template["spec"]["containers"][0]
        self.assertEqual(find("Deployment")["spec"]["selector"]["matchLabels"], labels)
        self.assertEqual(find("Service")["spec"]["selector"], labels)
        self.assertEqual(find("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels)
        self.assertEqual(find("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"], find("Deployment")["metadata"]["name"])
        self.assertEqual(container["ports"][0]["name"], find("Service")["spec"]["ports"][0]["targetPort"])
        self.assertIn("--port=%d" % container["ports"][0]["containerPort"], container["args"])
        drain = next(int(argument[8:]) for argument in container["args"] if argument.startswith("--drain="))
        self.assertGreater(template["spec"]["terminationGracePeriodSeconds"], drain)
        self.assertIn(template["spec"]["initContainers"][0]["args"][1], container["args"])

    def test_options_metrics_and_probes_exist(self):
        help_text = subprocess.run([MLXCEL, "serve", "--help-all"], capture_output=True, text=True, check=True).stdout
        with open(ROOT + "/docs/server.md") as file:
            server = file.read()
        for container in containers():
            for argument in container["args"]:
                if argument.startswith("--"):
                    self.assertIn(argument.split("=")[0], help_text)
            for probe in "startupProbe", "readinessProbe", "livenessProbe":
                if container["name"] != "pull":
                    self.assertIn("`%s`" % container[probe]["httpGet"]["path"], server)
        for metric in find("HorizontalPodAutoscaler")["spec"]["metrics"]:
            self.assertIn("`%s`" % metric["pods"]["metric"]["name"], server)

    def test_every_container_is_restricted(self):
        pod = find("Deployment")["spec"]["template"]["spec"]["securityContext"]
        for container in containers():
            context = {**pod, **container["securityContext"]}
            self.assertTrue(context["runAsNonRoot"] and context["readOnlyRootFilesystem"])
            self.assertEqual((context["runAsUser"], context["allowPrivilegeEscalation"], context["capabilities"]), (65532, False, {"drop": ["ALL"]}))
            self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertEqual([mount["mountPath"] for mount in container["volumeMounts"]], [CACHE, TRUSTED])


class Run(unittest.TestCase):
    """The Deployment's containers on this machine."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mlxcel-kubernetes-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        os.chmod(self.folder, 0o755)
        self.pod = find("Deployment")["spec"]["template"]["spec"]
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MLXCEL")}
        self.registry = subprocess.Popen([sys.executable, ROOT + "/tests/support/registry_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.registry.wait)
        self.addCleanup(self.registry.stdout.close)
        self.addCleanup(self.registry.stdin.close)
        self.reference = "oci://127.0.0.1:%s/team/model:1" % self.registry.stdout.readline().strip()

    def prepare(self, signs):
        """Pushes a bundle, and makes the folders that are volumes."""
        own = {**self.environment, "MLXCEL_CACHE": os.environ["MLXCEL_CACHE"], "MLXCEL_STATE": self.folder + "/own-state"}
        commands = [["compile", MODEL, "-o", self.folder + "/m.mlxb"], ["keygen", "-o", self.folder + "/team", "-W"]]
        commands += [["sign", self.folder + "/m.mlxb", "-s", self.folder + "/team.key"]] if signs else []
        for command in commands + [["push", self.folder + "/m.mlxb", self.reference]]:
            subprocess.run([MLXCEL, *command], env=own, check=True, capture_output=True)
        cache, trusted = self.folder + "/cache", self.folder + "/trusted"
        os.mkdir(cache)
        os.chmod(cache, 0o2777)  # an emptyDir
        if os.geteuid() == 0:
            os.chown(cache, 0, 65532)
        os.mkdir(trusted)
        shutil.copy(self.folder + "/team.pub", trusted)
        return cache, trusted

    def start(self, container, cache, trusted, *more):
        """Runs the container's command as its user, without privileges, with a root that only its volume can change."""
        context = {**self.pod["securityContext"], **container["securityContext"]}
        arguments = [self.reference if argument.startswith("oci://") else argument for argument in container["args"]]
        arguments = [argument for argument in arguments if not argument.startswith(("--port=", "--host="))]
        environment = {"PATH": "/usr/bin:/bin", "HOME": cache, "MLXCEL_STATE": cache + "/state", "XDG_CACHE_HOME": cache}
        environment |= {entry["name"]: entry["value"].replace(TRUSTED, trusted) for entry in container["env"]}
        script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro / && cd / && shift && exec "$@"'
        restrict = ["setpriv", "--reuid=%d" % context["runAsUser"], "--regid=%d" % context["runAsGroup"], "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", script, "sh", cache, *restrict, MLXCEL, *arguments, *more], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def check_can_restrict(self):
        if os.geteuid():
            self.skipTest("only root can start a process as another user")
        for program in "unshare", "setpriv":
            if not shutil.which(program):
                self.skipTest(program + " is not installed")
        probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
        if probe.returncode:
            self.skipTest("this system does not allow namespaces: " + probe.stderr)

    def test_the_pod_pulls_a_signed_bundle_and_serves_it(self):
        self.check_can_restrict()
        cache, trusted = self.prepare(True)
        pull, serve = self.pod["initContainers"][0], self.pod["containers"][0]
        for _ in range(2):  # a node that restarts runs it again
            done = self.start(pull, cache, trusted)
            output = done.communicate(timeout=60)[0]
            self.assertEqual(done.returncode, 0, output)
        self.registry.stdin.close()  # serving needs no registry
        self.registry.wait()
        server = self.start(serve, cache, trusted, "--port", "0", "--device", "cpu", "-c", "256")
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("listening on "):
                    break
            else:
                self.fail("".join(lines))
            url = lines[-1].split()[2]
            for probe in serve["startupProbe"], serve["livenessProbe"]:
                with urllib.request.urlopen(url + probe["httpGet"]["path"]) as response:
                    self.assertEqual(response.status, 200)
            request = urllib.request.Request(url + "/v1/completions", json.dumps({"model": "model", "prompt": "the", "max_tokens": 3}).encode(), {"Host": "mlxcel.default.svc"})
            with urllib.request.urlopen(request) as response:
                self.assertEqual(json.load(response)["usage"]["completion_tokens"], 3)
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(60), 0)
        finally:
            server.kill()
            server.stdout.close()
            server.wait()

    def test_a_bundle_without_a_trusted_signature_is_not_served(self):
        self.check_can_restrict()
        done = self.start(self.pod["containers"][0], *self.prepare(False), "--port", "0")
        output = done.communicate(timeout=60)[0]
        self.assertNotEqual(done.returncode, 0, output)
        self.assertIn("sign", output)


unittest.main()
