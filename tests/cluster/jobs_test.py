"""mlxcel batch as a job: of a Slurm of one node that this test starts, and of Open MPI.

    python3 jobs_test.py MLXCEL MODEL ROOT

ROOT has Debian's slurmctld, slurmd, slurm-client, munge and openmpi-bin, unpacked (./build.sh test --all). Every job must
write the same bytes as one process.
"""
import json, os, random, shutil, signal, socket, subprocess, sys, tempfile, time

binary, model, root = (os.path.abspath(path) for path in sys.argv[1:4])
folder = tempfile.mkdtemp(prefix="mlxcel-jobs-")
libraries = "%s/usr/lib/%s-linux-gnu" % (root, os.uname().machine)
environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PMIX"))}
environment |= {"PATH": "%s/usr/bin:%s/usr/sbin:%s" % (root, root, os.environ["PATH"]), "SLURM_CONF": folder + "/slurm.conf",
                "LD_LIBRARY_PATH": libraries + ":" + libraries + "/slurm-wlm"}
daemons = []
begun = time.time()


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def wait_for(what, condition, seconds=20):
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            raise AssertionError(what + " did not happen within %d s\n%s" % (seconds, logs()))
        time.sleep(0.05)


def logs():
    names = [name for name in sorted(os.listdir(folder)) if name.endswith((".log", ".out"))]
    return "\n".join("== %s\n%s" % (name, open(os.path.join(folder, name), errors="replace").read()[-3000:]) for name in names)


def run(*command, check=True, **more):
    result = subprocess.run(command, env=environment | more, cwd=folder, capture_output=True, text=True, timeout=120)
    if check and result.returncode:
        raise AssertionError("%s: %d\n%s%s\n%s" % (" ".join(command), result.returncode, result.stdout, result.stderr, logs()))
    return result


def start(name, *command):
    log = open(os.path.join(folder, name + ".log"), "w")
    daemons.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                    preexec_fn=os.setsid))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_slurm():
    user, host = run("id", "-un").stdout.strip(), socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        os.mkdir(os.path.join(folder, name))
    with open(folder + "/munge.key", "wb") as key:
        key.write(os.urandom(128))
    os.chmod(folder + "/munge.key", 0o400)
    with open(folder + "/slurm.conf", "w") as conf:
        conf.write("""ClusterName=test
SlurmctldHost=%(host)s(127.0.0.1)
SlurmUser=%(user)s
SlurmdUser=%(user)s
AuthType=auth/munge
AuthInfo=socket=%(folder)s/munge.socket
SlurmctldPort=%(control)d
SlurmdPort=%(node)d
StateSaveLocation=%(folder)s/state
SlurmdSpoolDir=%(folder)s/spool
SlurmctldPidFile=%(folder)s/slurmctld.pid
SlurmdPidFile=%(folder)s/slurmd.pid
PluginDir=%(libraries)s/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobRequeue=1
NodeName=%(host)s NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES State=UP
""" % {"user": user, "host": host, "folder": folder, "libraries": libraries, "control": free_port(), "node": free_port()})
    with open(folder + "/cgroup.conf", "w") as conf:
        conf.write("CgroupPlugin=cgroup/v1\n")
    start("munged", "munged", "--foreground", "--force", "--socket=%s/munge.socket" % folder, "--key-file=%s/munge.key" % folder,
          "--pid-file=%s/munge.pid" % folder, "--seed-file=%s/munge.seed" % folder, "--log-file=%s/munged-own.log" % folder)
    wait_for("the start of munged", lambda: os.path.exists(folder + "/munge.socket"))
    start("slurmctld", root + "/usr/sbin/slurmctld-wlm", "-D", "-i")
    wait_for("the start of slurmctld", lambda: run("scontrol", "ping", check=False).returncode == 0)
    start("slurmd", root + "/usr/sbin/slurmd-wlm", "-D", "-d", root + "/usr/sbin/slurmstepd-wlm", "-N", host)
    wait_for("the start of slurmd", lambda: "idle" in run("sinfo", "-h", "-o", "%t", check=False).stdout)


def stop():
    for daemon in reversed(daemons):
        try:
            os.killpg(daemon.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        daemon.wait()


def command(out):
    return [binary, "batch", folder + "/in.jsonl", "-o", out, "-m", model, "--device", "cpu", "-c", "256", "-n", "40", "-t", "1"]


def check(what, out):
    """The job has written the bytes of one process, and has removed its other files."""
    with open(folder + "/whole", "rb") as whole, open(out, "rb") as other:
        if whole.read() != other.read():
            raise AssertionError("%s: other bytes than those of one process" % what)
    left = [name for name in os.listdir(folder) if name.startswith(os.path.basename(out) + ".") and not name.endswith((".log", ".sh"))]
    if left:
        raise AssertionError("%s left %s" % (what, left))
    print("passed: %s, %.1f s" % (what, time.time() - begun), flush=True)


def submit(name, options, lines):
    path = "%s/%s.sh" % (folder, name)
    with open(path, "w") as script:
        script.write("#!/bin/bash\n#SBATCH --output=%s/%s-%%a.log\n#SBATCH --open-mode=append\n%s\n" % (folder, name, lines))
    return run("sbatch", "--parsable", *options, path).stdout.strip()


def states(job):
    return run("squeue", "-h", "-j", job, "-o", "%T", check=False).stdout.split()


def finish(job):
    wait_for("the end of job %s" % job, lambda: not states(job))


def slurm_cases():
    run("srun", "-n", "3", *command(folder + "/srun"))
    check("srun -n 3", folder + "/srun")

    out = folder + "/script"  # a script without srun is one process, whatever its tasks
    finish(submit("script", ["-n", "2"], " ".join(command(out))))
    check("a script of sbatch with two tasks", out)

    out = folder + "/array"
    finish(submit("array", ["--array=0-3"], " ".join(command(out))))
    check("an array of four", out)

    out = folder + "/both"
    finish(submit("both", ["--array=2-4:2", "-n", "2"], "srun " + " ".join(command(out))))
    check("an array of two with two tasks each", out)

    # A task is requeued while it runs, and its second run goes on after the results of the first.
    out, part = folder + "/requeued", folder + "/requeued.0-of-2.partial"
    # The first run is stopped after some results, so that it is still there to be requeued.
    slow = "if [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then %s & child=$!; while [ ! -s %s ]; do sleep 0.01; done; kill -STOP $child; wait; else exec %s; fi" % (
        " ".join(command(out)), part, " ".join(command(out)))
    job = submit("requeued", ["--array=0-1", "--requeue"],
                 'if [ "$SLURM_ARRAY_TASK_ID" = 1 ]; then exec %s; fi\n%s' % (" ".join(command(out)), slow))
    wait_for("the first results", lambda: os.path.exists(part) and os.path.getsize(part) > 0)
    before = open(part, "rb").read()
    run("scontrol", "requeue", job + "_0")
    # Slurm delays a requeued job: let it start now.
    wait_for("the requeue", lambda: "PENDING" in states(job) or not states(job))
    run("scontrol", "update", "JobId=" + job + "_0", "StartTime=now", check=False)
    # squeue may show no task for a moment between two states of the requeued one.
    wait_for("the end of both tasks", lambda: os.path.exists(out) and not states(job))
    check("an array of which one task was requeued", out)
    if before.count(b"\n") == 0 or "going on after" not in open(folder + "/requeued-0.log").read():
        raise AssertionError("the requeued task began again: " + logs())


def mpi_cases():
    program = shutil.which("mpirun.openmpi", path=environment["PATH"])
    if not program:
        return print("skipped: mpirun is not here")
    # OPAL_PREFIX: Open MPI is not where it was built for.
    run(program, "--allow-run-as-root", "--oversubscribe", "-n", "3", *command(folder + "/mpi"), OPAL_PREFIX=root + "/usr",
        OMPI_MCA_plm_rsh_agent="false", OMPI_MCA_btl="self,vader", TMPDIR=folder)
    check("mpirun -n 3", folder + "/mpi")


def main():
    if not os.path.exists(root + "/usr/sbin/slurmctld-wlm"):
        skip("Slurm is not in %s" % root)
    numbers = random.Random(39)
    with open(folder + "/in.jsonl", "w") as lines:
        for i in range(240):
            lines.write(json.dumps({"prompt": "the quick %d" % i, "max_tokens": numbers.randrange(5, 120)}) + "\n")
    run(*command(folder + "/whole"))
    start_slurm()
    print("Slurm:", run("srun", "--version").stdout.strip())
    slurm_cases()
    mpi_cases()


try:
    main()
    failed = False
except (AssertionError, subprocess.TimeoutExpired) as error:
    failed = True
    print("failed:", error)
finally:
    stop()
    shutil.rmtree(folder, ignore_errors=True)
sys.exit(failed)
