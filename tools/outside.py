"""The nbgrader preprocessor that runs a submission: the learner's cells in a sandbox, the test cells outside of it.

`nbgrader_config.py` puts it in the place of nbgrader's own `Execute`, which runs tests in the learner's kernel, where a
notebook can do what it likes with them. Here the kernel never sees a test: after each answer it is asked for what the
learner wrote (`tools.asking`), and the checks run in this process (`tools.judge`).
"""

import contextlib
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty

from filelock import FileLock
from nbclient.client import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.util import run_sync
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import Execute
from traitlets import Bool, Integer, List, Unicode

from tools import sandbox
from tools.asking import ANSWERING, Conversation, NoAnswer, TookTooLong
from tools.judge import Judge, failure
from tools.repair import bound
from tools.watch import Watch

KILLED = "its code killed the kernel (exit, crash or out of memory)"
CONNECT_SECONDS = 30
MOST_TEXT = 20_000  # characters of one output


class Stopped(Exception):
    """The submission needs a human; the message says why."""


class Outside(Execute):
    """Runs a notebook's own cells in a kernel and its test cells in this process."""

    sandboxed = Bool(True, help="start kernels in bubblewrap; without it submissions run as whoever grades").tag(
        config=True
    )
    hidden = List(Unicode(), help="folders that no submission may see, wherever they lie").tag(config=True)
    lock = Unicode(help="file lock on the gradebook; let go of while a submission runs, so that others can write").tag(
        config=True
    )
    most_seconds = Integer(300, help="for all of a notebook's cells and questions together").tag(config=True)
    most_memory_mb = Integer(4096, help="resident, of the kernel and all that it starts").tag(config=True)
    most_processes = Integer(64, help="of the kernel and all that it starts").tag(config=True)
    most_files_mb = Integer(100, help="that the kernel writes into the folder of its sockets").tag(config=True)
    most_output_mb = Integer(20, help="of text and pictures that the cells write").tag(config=True)
    trial_secret = Unicode("", help="where the seeds of trials come from; drawn anew when empty").tag(config=True)
    question_seconds = Integer(60, help="for one exercise's questions").tag(config=True)

    def preprocess(self, nb, resources, km=None):
        NotebookClient.__init__(self, nb, km)
        self.resources = resources
        self._read_source(resources["nbgrader"])
        self.judge, self.asked_for = Judge(self.trial_secret), []
        self.end = time.monotonic() + self.most_seconds
        self.written = 0
        with self._unlocked(), sandbox.fresh_folder() as self.folder, self.setup_kernel(**sandbox.STREAMS):
            limits = (self.most_seconds, self.most_memory_mb, self.most_processes, self.most_files_mb)
            self.watch = Watch(self.km.provisioner.pid, self.folder, *limits)
            try:
                self._run_all(nb)
            except DeadKernelError:
                raise Stopped(self.watch.reason or KILLED) from None
            except Stopped as error:
                raise Stopped(self.watch.reason or str(error)) from None
            finally:
                self.watch.stop()
        return nb, resources

    @contextlib.contextmanager
    def _unlocked(self):
        """Inside the `with`, whoever holds the lock on the gradebook in this process does not."""
        lock = FileLock(self.lock, is_singleton=True) if self.lock else None
        held = lock is not None and lock.is_locked
        if held:
            lock.release()
        try:
            yield
        finally:
            if held:
                lock.acquire()

    def process_message(self, msg, cell, cell_index):
        """Count what a kernel says, and keep of each text no more than anyone reads."""
        content = msg["content"]
        texts = [content, *(content[k] for k in ("data",) if isinstance(content.get(k), dict))]
        for part in texts:
            for key, value in part.items():
                if isinstance(value, str):
                    self.written += len(value)
                    if len(value) > MOST_TEXT:
                        part[key] = value[:MOST_TEXT] + " […]"
        if self.written > self.most_output_mb << 20:
            self.watch.end_it(f"its code wrote more than {self.most_output_mb} MB of output")
        return super().process_message(msg, cell, cell_index)

    def create_kernel_manager(self):
        manager = super().create_kernel_manager()
        sandbox.confine(manager, self.folder, self.hidden, self.sandboxed)
        return manager

    def _read_source(self, about: dict) -> None:
        """What the cells of this notebook are, according to the gradebook and not to the submission."""
        with Gradebook(about["db_url"]) as gradebook:
            notebook = gradebook.find_notebook(about["notebook"], about["assignment"])
            self.points = {c.name: float(c.max_score) for c in notebook.grade_cells}
            answers = {c.name for c in notebook.solution_cells}
            self.released = {c.name: c.source for c in notebook.source_cells}
            self.tests = {name for name in self.points if name not in answers}
            self.answers = {name: bound(self.released[name]) for name in answers}

    def _run_all(self, nb) -> None:
        seen = {c.metadata.get("nbgrader", {}).get("grade_id") for c in nb.cells}
        for name in sorted(set(self.released) - seen - self.tests - set(self.answers)):
            self._set_up(name)
        left = len([c for c in nb.cells if utils.is_grade(c)])
        for index, cell in enumerate(nb.cells):
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            if cell.cell_type != "code":
                continue
            if name in self.tests:
                cell.outputs, cell.execution_count = self._ask(name), index + 1
                left -= 1
            elif name in self.answers or name in self.released or self.skip_cells_with_tag not in _tags(cell):
                if name in self.released and name not in self.answers:
                    self._set_up(name)
                self.asked_for += [n for n in self.answers.get(name, ()) if n not in self.asked_for]
                cell.metadata["tags"] = []
                with contextlib.nullcontext() if left else contextlib.suppress(DeadKernelError):
                    self._run(cell, index)

    def _set_up(self, name: str) -> None:
        self.judge.set_up(self.released[name])

    def _run(self, cell, index: int) -> None:
        left = self.end - time.monotonic()
        if left <= 0:
            raise Stopped(f"its cells take longer than {self.most_seconds} s together")
        self.timeout_func = lambda _: min(self.timeout, int(left) + 3)  # the watch is first
        try:
            self.execute_cell(cell, index, store_history=True)
        except CellTimeoutError as error:
            raise Stopped(f"its output did not come in time: {str(error)[:100]}") from None

    def _ask(self, name: str) -> list:
        """The outputs of test cell `name`, judged in this process on what the kernel answers."""
        deadline = min(self.end, time.monotonic() + self.question_seconds)
        try:
            asked = Conversation(self._connected(deadline), deadline)
        except OSError:
            self._check_alive()
            raise Stopped("its code changed how cells run, so that it cannot be asked for its answers") from None
        try:
            return self.judge.test(name, self.released[name], self.asked_for, asked, self.points[name])
        except TookTooLong as error:
            return [failure("TookTooLong", f"{error} ({self.question_seconds} s)")]
        except NoAnswer as error:
            for _ in range(10):  # a process that ends takes its time
                self._check_alive()
                time.sleep(0.1)
            raise Stopped(str(error)) from None
        finally:
            if asked.broken:
                run_sync(self._interrupt)()
            asked.close()

    def _connected(self, deadline: float) -> Connection:
        """Make the kernel run `tools/answering.py` and connect to it."""
        address = str(self.folder / "ask")
        Path(address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
            server.listen(1)
            code = (
                f"__import__('builtins').exec({ANSWERING.read_text(encoding='utf-8') + _MAIN.format(address)!r}, {{}})"
            )
            question = run_sync(self._send)(code)
            until = min(deadline, time.monotonic() + CONNECT_SECONDS)
            server.settimeout(0.05)
            while True:
                try:
                    return Connection(server.accept()[0].detach())
                except TimeoutError:
                    self._check_alive()
                    if time.monotonic() > until or run_sync(self._replied)(question):
                        raise

    async def _send(self, code: str) -> str:
        return self.kc.execute(code, silent=True, store_history=False, allow_stdin=False)

    async def _replied(self, question: str) -> bool:
        """Whether the kernel says that it is done with `question`: then it never came to asking."""
        try:
            reply = await self.kc.shell_channel.get_msg(timeout=0)
        except Empty:
            return False
        return reply["parent_header"].get("msg_id") == question

    async def _interrupt(self) -> None:
        await self.km.interrupt_kernel()

    def _check_alive(self) -> None:
        run_sync(self._async_check_alive)()


_MAIN = "\nmain({!r})\n"


def _tags(cell) -> list:
    return cell.metadata.get("tags", [])
