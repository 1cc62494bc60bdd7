"""The supervisor, run for real over small programs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for

SUPERVISE = """
import asyncio, sys
from pathlib import Path
from chatsite.process_output import Console
from chatsite.supervisor import CannotStart, Program, Supervisor

folder = Path(sys.argv[1])

def program(name, text, **more):
    return Program(name=name, command=[sys.executable, "-u", "-c", text], **more)

{programs}

supervisor = Supervisor(programs=programs, folder=folder, log_dir=folder / "log", console=Console())

async def watch():
    {watch}

try:
    asyncio.run(supervisor.run(watch=watch))
except CannotStart as error:
    sys.exit(f"cannot start: {{error}}")
print("all stopped", flush=True)
"""
# Notes its number in a file named for it, and when it is told to stop, its name in the file `stopped`.
STAYS = """
import os, signal, sys, time
from pathlib import Path
def stop(number, frame):
    with Path("stopped").open("a") as file:
        file.write("{name}\\\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with Path("{name}.pids").open("a") as file:
    file.write(f"{{os.getpid()}}\\\\n")
print("{name} is up")
while True:
    signal.pause()
"""


class Site:
    """A supervisor process at work in `folder`."""

    def __init__(self, *, folder: Path, programs: str, watch: str, ignoring_hangups: bool) -> None:
        self.folder = folder
        self.output = folder / "output"
        text = SUPERVISE.format(programs=programs, watch=watch)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*(["nohup"] if ignoring_hangups else []), sys.executable, "-c", text, str(folder)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pids(self, name: str) -> list[int]:
        """The process numbers that the program noted, oldest first."""
        path = self.folder / f"{name}.pids"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def says(self, text: str) -> bool:
        return text in self.output.read_text()

    def wait_for_output(self, text: str) -> None:
        wait_for(lambda: self.says(text), what=f"output {text!r} in {self.output.read_text()!r}")

    def end(self) -> int:
        return self.process.wait(timeout=30)


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie that nobody has fetched does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


@contextlib.contextmanager
def supervised(folder: Path, *, programs: str, watch: str = "pass", ignoring_hangups: bool = False) -> Iterator[Site]:
    site = Site(folder=folder, programs=programs, watch=watch, ignoring_hangups=ignoring_hangups)
    try:
        yield site
    finally:
        site.process.kill()
        site.process.wait()


def staying(name: str, *, more: str = "") -> str:
    return f"program({name!r}, '''{STAYS.format(name=name)}'''{more})"


def test_each_line_of_output_is_shown_under_its_programs_name_and_kept_in_its_log(tmp_path: Path) -> None:
    with supervised(tmp_path, programs=f"programs = [{staying('web')}]") as site:
        site.wait_for_output("web    | web is up\n")
        assert (tmp_path / "log" / "web.log").read_text() == "web is up\n"


def test_what_is_to_be_done_when_a_program_has_ended_is_done_before_it_starts_again(tmp_path: Path) -> None:
    more = ", ended=lambda: print('seen to', flush=True), pause_s=1.5"
    with supervised(tmp_path, programs=f"programs = [{staying('worker', more=more)}]") as site:
        wait_for(lambda: len(site.pids("worker")) == 1, what="the program starts")
        os.kill(site.pids("worker")[0], signal.SIGKILL)
        wait_for(lambda: len(site.pids("worker")) == 2, what="the program starts again")
        wait_for(lambda: site.output.read_text().count("worker is up") == 2, what="it says that it is up again")
        text = site.output.read_text()
        assert "again in 1.5 s" in text
        assert text.index("ended with") < text.index("seen to") < text.rindex("worker is up")


def test_a_failure_in_what_follows_a_programs_end_is_said_and_it_starts_again(tmp_path: Path) -> None:
    more = ", ended=lambda: 1 / 0"
    with supervised(tmp_path, programs=f"programs = [{staying('worker', more=more)}]") as site:
        wait_for(lambda: len(site.pids("worker")) == 1, what="the program starts")
        os.kill(site.pids("worker")[0], signal.SIGKILL)
        wait_for(lambda: len(site.pids("worker")) == 2, what="the program starts again")
        site.wait_for_output("worker: ZeroDivisionError")


def test_a_program_that_dies_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, programs=f"programs = [{staying('worker')}]") as site:
        wait_for(lambda: len(site.pids("worker")) == 1, what="the program starts")
        os.kill(site.pids("worker")[0], signal.SIGKILL)
        wait_for(lambda: len(site.pids("worker")) == 2, what="the program starts again")
        site.wait_for_output("worker ended with signal SIGKILL")


def test_what_a_dead_program_leaves_in_its_group_is_killed(tmp_path: Path) -> None:
    parent = (
        "import subprocess, sys, signal; from pathlib import Path; "
        "child = subprocess.Popen(['sleep', '600']); "
        "Path('child.pids').write_text(f'{child.pid}\\\\n'); signal.pause()"
    )
    programs = f'programs = [program("worker", "{parent}")]'
    with supervised(tmp_path, programs=programs) as site:
        wait_for(lambda: bool(site.pids("child")), what="the grandchild starts")
        (grandchild,) = site.pids("child")
        (worker,) = _children(site.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not alive(grandchild), what="the grandchild is gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_in_order_and_ends_well(tmp_path: Path, number: signal.Signals) -> None:
    valkey = staying("valkey", more=", stop_stage=2")
    web = staying("web")
    worker = staying("worker", more=", stop_stage=1")
    with supervised(tmp_path, programs=f"programs = [{valkey}, {web}, {worker}]") as site:
        wait_for(lambda: all(map(site.pids, ("valkey", "web", "worker"))), what="all are up")
        site.process.send_signal(number)
        assert site.end() == 0
        assert (tmp_path / "stopped").read_text().split() == ["web", "worker", "valkey"]
        assert site.says("all stopped")


def test_under_nohup_the_site_outlives_its_terminal(tmp_path: Path) -> None:
    with supervised(tmp_path, programs=f"programs = [{staying('web')}]", ignoring_hangups=True) as site:
        wait_for(lambda: bool(site.pids("web")), what="the program starts")
        site.process.send_signal(signal.SIGHUP)
        os.kill(site.pids("web")[0], signal.SIGKILL)
        wait_for(lambda: len(site.pids("web")) == 2, what="it is kept running")


def test_a_program_that_ignores_the_stop_is_killed_after_its_grace(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"
    with supervised(tmp_path, programs=f'programs = [program("web", "{deaf}", grace_s=0.2)]') as site:
        site.wait_for_output("| deaf")
        site.process.send_signal(signal.SIGTERM)
        assert site.end() == 0
        assert site.says("web: still there after 0.2 s, killed")


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"
    with supervised(tmp_path, programs=f'programs = [program("web", "{deaf}", grace_s=600)]') as site:
        site.wait_for_output("| deaf")
        site.process.send_signal(signal.SIGINT)
        site.wait_for_output("stopping web")
        site.process.send_signal(signal.SIGINT)
        assert site.end() == 0


def test_killing_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with supervised(tmp_path, programs=f"programs = [{staying('web')}, {staying('worker')}]") as site:
        wait_for(lambda: all(map(site.pids, ("web", "worker"))), what="both are up")
        site.process.kill()
        left = [*site.pids("web"), *site.pids("worker")]
        wait_for(lambda: not any(map(alive, left)), what="no process is left", seconds=3)


def test_a_program_that_cannot_run_ends_the_start_and_names_its_log(tmp_path: Path) -> None:
    programs = f'programs = [{staying("valkey", more=", stop_stage=1")}, program("web", "1 / 0")]'
    with supervised(tmp_path, programs=programs) as site:
        assert site.end() == 1
        assert site.says("cannot start: web ended 4 times, last with status 1; see ")
        assert "ZeroDivisionError" in (tmp_path / "log" / "web.log").read_text()
        assert not any(map(alive, site.pids("valkey")))


def test_once_ready_a_program_may_end_however_often(tmp_path: Path) -> None:
    programs = (
        "import chatsite.supervisor; chatsite.supervisor.BACKOFF_S = (0.01,); "
        'programs = [program("web", "print(\'again\')")]'
    )
    with supervised(tmp_path, programs=programs, watch="supervisor.mark_ready()") as site:
        wait_for(lambda: site.output.read_text().count("| again") > 6, what="many restarts")
        assert site.process.poll() is None


def test_the_next_program_starts_when_the_one_before_says_so(tmp_path: Path) -> None:
    programs = f"""
async def until_file():
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    Path(folder / "went").write_text("")
programs = [{staying("valkey", more=", started=until_file")}, {staying("web")}]
"""
    with supervised(tmp_path, programs=programs) as site:
        site.wait_for_output("valkey is up")
        assert not site.pids("web")
        (tmp_path / "go").touch()
        wait_for(lambda: bool(site.pids("web")), what="the second program starts")


def test_a_failed_start_of_what_others_need_stops_the_rest(tmp_path: Path) -> None:
    programs = f"""
async def never():
    raise CannotStart(name="valkey", status=1, log=folder)
programs = [{staying("valkey", more=", started=never")}, {staying("web")}]
"""
    with supervised(tmp_path, programs=programs) as site:
        assert site.end() == 1
        assert not site.pids("web")
        assert not any(map(alive, site.pids("valkey")))


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
