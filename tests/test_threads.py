"""What OpenMP and numba are told before they are loaded."""

import subprocess
import sys

from helpers import threads


def test_linux_waits_briefly_and_asks_for_large_pages():
    assert threads.settings("Linux") == {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}


def test_a_mac_gets_one_openmp_and_its_performance_cores(monkeypatch):
    expected = {"NUMBA_THREADING_LAYER": "workqueue", "KMP_BLOCKTIME": "1"}
    assert threads.settings("Darwin", lambda: 6) == expected | {"OMP_NUM_THREADS": "6"}
    assert threads.settings("Darwin", lambda: None) == expected, "an Intel Mac has cores of one kind"
    monkeypatch.setattr(threads.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(threads, "_performance_cores", lambda: 8)
    environment = {"OMP_NUM_THREADS": "2", "KMP_BLOCKTIME": "0"}
    threads.settle(environment)
    assert environment["OMP_NUM_THREADS"] == environment["NUMBA_NUM_THREADS"] == "2", "what was set stays"
    assert environment["KMP_BLOCKTIME"] == "0" and environment["NUMBA_THREADING_LAYER"] == "workqueue"


def test_it_is_said_before_torch_or_numba_is_loaded():
    program = (
        "import platform, sys; platform.system = lambda: 'Darwin'; import helpers, os;"
        "assert not {'torch', 'numba'} & set(sys.modules); print(os.environ['NUMBA_THREADING_LAYER'])"
    )
    environment = {"PATH": "/nowhere", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "workqueue\n", done.stderr
