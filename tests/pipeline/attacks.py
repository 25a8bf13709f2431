"""What notebooks have tried: code that wants points for nothing, and honest code that looks odd.

`ATTACKS` stand in an answer's cell before a wrong answer; `HONEST` are right functions `double`. `SMALL` are those that
`make test` tries, one of each mechanism; `make grade-proof` tries all.
"""

SHELL = "shell = get_ipython()\n"
PATCH = "import IPython.core.interactiveshell as s, ipykernel.ipkernel as k\n"

# Each stands in the first answer's cell, before a wrong answer; no second answer is given.
ATTACKS = {
    "a transformer of the input": SHELL
    + "shell.input_transformers_post.append(lambda lines: ['pass\\n'] if 'grade' in ''.join(lines) else lines)",
    "a transformer of the syntax tree": SHELL
    + "import ast\nclass T(ast.NodeTransformer):\n    def visit_Assert(self, node): return None\n"
    + "    def visit_Expr(self, node): return None if 'grade' in ast.dump(node) else node\n"
    + "shell.ast_transformers.append(T())",
    "a hook on run_cell": PATCH
    + "old = s.InteractiveShell.run_cell_async\n"
    + "async def run(self, cell, *a, **k):\n    return await old(self, 'pass' if 'grade' in cell else cell, *a, **k)\n"
    + "s.InteractiveShell.run_cell_async = run",
    "a hook on the display": "import sys\nsys.displayhook = lambda x: None\nshell = get_ipython()\n"
    + "shell.display_formatter.format = lambda x, **k: ({'text/plain': '2.0'}, {})",
    "shadowed builtins": "import builtins\nbuiltins.abs = lambda x: 0\nabs = lambda x: 0\n"
    + "builtins.float = lambda x=0: 46_080.0\nbuiltins.isinstance = lambda *a: True",
    "a checker of its own": "import helpers.check as c\nc.grade = c.number = c.require = lambda *a, **k: None",
    "arithmetic that lies": "class Any(float):\n    def __sub__(self, other): return 0\n    __rsub__ = __sub__\n"
    + "    def __float__(self): return self\n    def __lt__(self, other): return True\n"
    + "    def __eq__(self, other): return True\n    __hash__ = float.__hash__",
    "outputs of its own": "print('✓ 77.1')\n2.0",
    "a channel of its own": "import multiprocessing.connection as m\nold = m.Connection.send_bytes\n"
    + 'm.Connection.send_bytes = lambda self, data: old(self, b\'{"value": {"function": 0, "name": "f", '
    + '"stub": false, "blank": false}}\')',
}
# The wrong answer of the miniature unit that goes with each.
WRONG = {name: "kv_bytes = Any(1)" if "lies" in name else "kv_bytes = 1" for name in ATTACKS}

# Those that leave the kernel as it is go into one notebook: what one of them earned would show.
TOGETHER = (
    "a transformer of the input",
    "a transformer of the syntax tree",
    "a checker of its own",
    "outputs of its own",
)
SMALL = ("a hook on run_cell", "shadowed builtins", "arithmetic that lies", "a channel of its own")

HONEST = {
    "warns": "import warnings\ndef double(x):\n    warnings.warn('deprecated')\n    return 2 * x",
    "shows progress": "from tqdm import tqdm\ndef double(x):\n    return sum(x for _ in tqdm(range(2)))",
    "shadows abs": "abs = sum = float = len = list = exec = None\ndef double(x):\n    return x + x",
    "returns a Decimal": "from decimal import Decimal\ndef double(x):\n    return Decimal(2 * x)",
    "returns numpy": "import numpy as np\ndef double(x):\n    return np.float32(2 * x)",
}
