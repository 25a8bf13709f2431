"""Grades several submissions at a time: each in a process of its own, all in one gradebook.

A process holds the gradebook's lock while nbgrader reads or writes it, and lets go of it while the learner's code runs
(`tools.outside`), which is most of the time. So SQLite never sees two of them.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from tools.grading import Grader, Result
from tools.units import CourseError, Unit

Key = TypeVar("Key")
# (what it is called here, what makes its grader, student, unit, notebook)
Job = tuple[Key, Callable[[], Grader], str, Unit, Path]

_graders: dict[Path, Grader] = {}  # of a worker


def graded(jobs: Iterable[Job], at_a_time: int) -> Generator[tuple[Key, Result, float], None, None]:
    """(key, result, seconds) of each job as it is done; one after another in this process, or `at_a_time`.

    Raises `CourseError` when a worker dies, which no submission can bring about. Whoever leaves the loop early ends the
    workers, and with them what they were at.
    """
    jobs = list(jobs)
    if at_a_time < 2 or len(jobs) < 2:
        for key, course, *job in jobs:
            start = time.monotonic()
            yield key, course().grade(*job), time.monotonic() - start
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(at_a_time, len(jobs)), context, initializer=_begin)
    before = set(multiprocessing.active_children())
    try:
        keys = {pool.submit(_grade, course().made_of, *job): key for key, course, *job in jobs}
        for done in as_completed(keys):
            yield keys[done], *done.result()
    except BrokenProcessPool as error:
        raise CourseError(f"a grading process ended: {error}. Run the same command again to go on.") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.kill()


def _grade(made_of: tuple, student: str, unit: Unit, notebook: Path) -> tuple[Result, float]:
    start, folder = time.monotonic(), made_of[0]
    if folder not in _graders:
        _graders[folder] = Grader(*made_of)
    return _graders[folder].grade(student, unit, notebook), time.monotonic() - start


def _begin() -> None:
    """A worker ends with the process that started it, also when that one is killed; Ctrl-C is that one's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
