"""Runs jobs as child processes: several at once, each with its output in a file that is printed whole at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.1
SPARE_CORES = 1.0
"""What jobs may take beyond the cores there are: most of them wait at some time."""
INTERRUPT_LIMIT_S = 30.0
"""How long a job that is interrupted may take to end its own children, before it is killed."""


@dataclass(frozen=True)
class Job:
    """One command and when it may run."""

    name: str
    command: tuple[str, ...]
    cores: float = 1.0
    """How many cores it keeps busy, measured: what waits most of the time counts little."""
    after: tuple[str, ...] = ()
    """Names of jobs that must have passed before it starts."""
    later_than: tuple[str, ...] = ()
    """Names of jobs that must have ended before it starts, passed or not."""
    takes: frozenset[str] = frozenset()
    """Things of which there is one on this machine: two jobs that take the same thing never run at once."""
    measures: bool = False
    """It measures how long something takes: nothing runs beside it but what computes, and nothing else starts while it
    waits for the machine alone."""
    computes: bool = False
    """It computes, with small files and servers in its own process at most: others start as if it were not there."""
    nice: int = 0
    """How far it gives way to others on processors that are busy, 0 to 19, with all that it starts in its session."""
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 3600.0
    suite: str = ""
    """The suite that it belongs to; empty for what only prepares others."""
    report: Path | None = None
    """Where pytest writes what it found, as JUnit XML."""

    def log_in(self, folder: Path) -> Path:
        """Where its output goes."""
        return folder / f"{self.name.replace('/', '-').replace(' ', '-')}.log"


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    job: Job
    code: int | None
    """Its exit code; None: it did not run because a job before it failed."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether it did what it should."""
        return self.code == 0 and not self.reason

    @property
    def verdict(self) -> str:
        """One or a few words for the summary."""
        if self.passed:
            return "passed"
        return f"FAILED ({self.reason or self.code})"


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    started_s: float
    log: Path
    shown: int = 0


class Scheduler:
    """Starts jobs in their order, as soon as cores, the jobs before them and what they take allow it."""

    def __init__(
        self, jobs: Sequence[Job], cores: float, folder: Path, judge: Callable[[Job], str], say: Callable[[str], None]
    ) -> None:
        self._pending = list(jobs)
        self._cores = cores
        self._folder = folder
        self._judge = judge
        self._say = say
        self._running: list[_Running] = []
        self._ended: dict[str, Ended] = {}
        self._began_s = time.monotonic()
        suites = [job for job in jobs if job.suite]
        self._live = suites[0] if len(suites) == 1 else None

    def run(self) -> list[Ended]:
        """Run all jobs to their end; returns how they ended, in the order in which they did."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            while self._pending or self._running:
                self._start_what_fits()
                time.sleep(POLL_S)
                for running in list(self._running):
                    self._look_at(running)
        finally:
            self._end_all()
        return list(self._ended.values())

    # -- starting ------------------------------------------------------------------------------------------------

    def _start_what_fits(self) -> None:
        for job in list(self._pending):
            broken = next((name for name in job.after if name in self._ended and not self._ended[name].passed), None)
            if broken is not None:
                self._pending.remove(job)
                self._end(Ended(job, None, reason=f"{broken} failed"))
            elif self._may_start(job):
                self._pending.remove(job)
                self._start(job)

    def _may_start(self, job: Job) -> bool:
        waiting = {other.name for other in self._pending} | {running.job.name for running in self._running}
        if waiting & {*job.after, *job.later_than}:
            return False
        busy = [running.job for running in self._running]
        if any(other.takes & job.takes for other in busy):
            return False
        if not job.computes and any(other.measures or job.measures for other in busy if not other.computes):
            return False
        ready = (other for other in self._pending if not waiting & {*other.after, *other.later_than})
        if not job.computes and not job.measures and any(other.measures for other in ready):
            return False
        # What gives way further leaves it the cores.
        computing = sum(other.cores for other in busy if other.computes and other.nice <= job.nice)
        rest = sum(other.cores for other in busy if not other.computes)
        if not busy or rest + (computing if job.computes else 0.0) + job.cores <= self._cores + SPARE_CORES:
            return True
        # Something always computes in the time for which the others wait.
        return job.computes and computing + job.cores <= self._cores - 1

    def _start(self, job: Job) -> None:
        log = job.log_in(self._folder)
        if job.report is not None:
            job.report.unlink(missing_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                (*(("nice", "-n", str(job.nice)) if job.nice else ()), *job.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.environment},
                start_new_session=True,
            )
        _give_way(process, job.nice)
        self._running.append(_Running(job, process, time.monotonic(), log))
        if job.suite:
            self._tell(f"{job.name} started")

    def _tell(self, words: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        self._say(f"[{minutes:3d}:{seconds:02d}] {words}")

    # -- ending --------------------------------------------------------------------------------------------------

    def _look_at(self, running: _Running) -> None:
        if running.job is self._live:
            self._show(running)
        seconds = time.monotonic() - running.started_s
        pid, status, usage = os.wait4(running.process.pid, os.WNOHANG)
        if pid == 0:
            if seconds > running.job.limit_s:
                self._interrupt([running])
                self._finish(running, Ended(running.job, -1, seconds, reason=f"not done within {seconds:.0f} s"))
            return
        code = running.process.returncode = os.waitstatus_to_exitcode(status)
        reason = self._judge(running.job) if code == 0 else ""
        self._finish(running, Ended(running.job, code, seconds, usage.ru_utime + usage.ru_stime, reason))

    def _finish(self, running: _Running, ended: Ended) -> None:
        self._running.remove(running)
        job = running.job
        if job is self._live:
            self._show(running)
        elif job.suite or not ended.passed:
            self._say(f"== {job.name}")
            self._show(running)
        self._end(ended)

    def _end(self, ended: Ended) -> None:
        self._ended[ended.job.name] = ended
        if ended.job.suite or not ended.passed:
            self._tell(
                f"{ended.job.name} {ended.verdict} after {ended.seconds:.0f} s, {ended.cpu_s:.0f} s of processor"
            )

    def _show(self, running: _Running) -> None:
        """Print what the job wrote since this was called last."""
        with running.log.open("rb") as log:
            log.seek(running.shown)
            while piece := log.read(1 << 16):
                running.shown += len(piece)
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    def _end_all(self) -> None:
        self._interrupt(self._running)
        self._running.clear()

    def _interrupt(self, these: Sequence[_Running]) -> None:
        """End jobs and what they started: first as Ctrl-C does, then by SIGKILL."""
        ends_at_s = time.monotonic() + INTERRUPT_LIMIT_S
        for running in these:
            _signal_group(running.process, signal.SIGINT)
        for running in these:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, ends_at_s - time.monotonic()))
            _signal_group(running.process, signal.SIGKILL)
            running.process.wait()


def _give_way(process: subprocess.Popen[bytes], nice: int) -> None:
    """Let a session of processes give way to others: with autogroups, Linux heeds niceness only within a session."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # no autogroups here; or it has ended
        Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
