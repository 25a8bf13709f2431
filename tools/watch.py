"""Holds a kernel to its limits while it runs: memory, processes, disk and time, of it and of all that it starts."""

import threading
import time
from pathlib import Path

import psutil

MB = 1 << 20
SECONDS_BETWEEN_LOOKS = 0.25


class Watch(threading.Thread):
    """Looks at process `pid` and its descendants until `stop`; kills them all when a limit is passed.

    `reason` then says which, in words for the grader's note.
    """

    def __init__(self, pid: int, folder: Path, seconds: float, memory_mb: int, processes: int, folder_mb: int):
        super().__init__(daemon=True)
        self.root, self.folder, self.end = psutil.Process(pid), folder, time.monotonic() + seconds
        self.limits = {"seconds": seconds, "memory": memory_mb, "processes": processes, "folder": folder_mb}
        self.reason = ""
        self._stopped = threading.Event()
        self.start()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def end_it(self, reason: str) -> None:
        """Kill the kernel for a reason found elsewhere."""
        self.reason = self.reason or reason
        self._kill()

    def run(self) -> None:
        while not self._stopped.wait(SECONDS_BETWEEN_LOOKS):
            broken = self._broken()
            if broken:
                self.end_it(broken)
                return

    def _broken(self) -> str:
        family = self._family()
        memory = sum(self._resident(process) for process in family)
        if memory > self.limits["memory"] * MB:
            return f"its code used more than {self.limits['memory']:,} MB of memory"
        if len(family) > self.limits["processes"]:
            return f"its code started more than {self.limits['processes']} processes"
        if _size(self.folder) > self.limits["folder"] * MB:
            return f"its code wrote more than {self.limits['folder']} MB of files"
        if time.monotonic() > self.end:
            return f"its cells take longer than {self.limits['seconds']:g} s together"
        return ""

    def _family(self) -> list[psutil.Process]:
        try:
            return [self.root, *self.root.children(recursive=True)]
        except psutil.Error:
            return []

    @staticmethod
    def _resident(process: psutil.Process) -> int:
        try:
            return process.memory_info().rss
        except psutil.Error:
            return 0

    def _kill(self) -> None:
        # Until none is left: a process may have been started in between.
        for _ in range(20):
            family = self._family()
            for process in reversed(family):
                try:
                    process.kill()
                except psutil.Error:
                    continue
            if len(family) <= 1:
                return


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total
