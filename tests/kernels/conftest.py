"""Triton's interpreter has to be switched on before Triton is imported for the first time."""

import os
import platform
import sys

if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
    os.environ["TRITON_INTERPRET"] = "1"
else:
    # Triton has no wheels here. Everywhere else a missing Triton is an error, not a reason to pass.
    collect_ignore_glob = ["test_cuda_*"]
    print(f"The GPU kernels are not tested: Triton has no wheels for {sys.platform} {platform.machine()}.")
