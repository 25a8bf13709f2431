"""The sandbox's half of a question: runs in the learner's kernel, finds what they wrote and tells it as plain JSON.

The text of this file is sent to the kernel anew for each question (`tools.asking` is the other half), so nothing that a
notebook defines is among its names. What it says is believed to be no more than an answer: a notebook that tampers with
it can give other answers, and all of them are checked outside. What arrives here is pickled by the grader, who may be
trusted; what leaves is JSON.
"""

import base64
import collections.abc
import contextlib
import importlib
import inspect
import io
import json
import linecache
import os
import pickle
import sys
from multiprocessing.connection import Client

DEEPEST = 60
MOST_BYTES = 64 << 20  # of one answer


class Theirs:
    """Stands for something that stays with the grader: a call or an attribute is asked for over there."""

    def __init__(self, conversation, ref):
        self.__dict__["_conversation"], self.__dict__["_ref"] = conversation, ref

    def __getattr__(self, name):
        return self._conversation.ask_back(self._ref, name, None, None)

    def __call__(self, *args, **kwargs):
        return self._conversation.ask_back(self._ref, None, args, kwargs)


def bare(kind, overridden):
    """An object of class `kind` with nothing in it; what an abstract class leaves open is the check's own business.

    So are the methods that the check has `overridden`, mostly by the learner's function: in a notebook that function
    would call itself through them, and here it does not get the course's own method either.
    """
    open_ends = kind.__abstractmethods__ if inspect.isabstract(kind) else ()
    if overridden or open_ends:
        parts = dict.fromkeys(open_ends) | dict.fromkeys(overridden, calls_itself)
        # In a kernel this text is no module, and what it makes has none unless told.
        kind = type(kind.__name__, (kind,), parts | {"__module__": kind.__module__})
    return kind.__new__(kind)


def calls_itself(*_, **__):
    raise RecursionError("this method is there to call your function, which would call itself")


class Conversation:
    """Answers on one connection until the grader hangs up."""

    def __init__(self, connection, names):
        self.connection = connection
        self.names = names
        self.kept = []  # what the grader knows by number: functions, iterators, objects
        self.numbers = {}  # id() of a kept thing -> its number
        self.tables = []  # of each call under way: the grader's mutable arguments, as they are here
        self.iterating = {}  # number of an iterator -> the table of the call that made it
        self.operate = None  # does operations on tensors that stay with the grader, during a call that is counted
        self.distant = {}  # number of such a tensor -> what stands for it here
        self.kind = None  # the class of what stands for it

    def serve(self):
        """Do what is asked until ("return", …) ends a question of ours, or ("bye",) ends it all."""
        while True:
            verb, *rest = self.receive()
            if verb in ("bye", "return", "raise"):
                return verb, rest
            self.answer(getattr(self, "on_" + verb), rest)

    def answer(self, action, arguments):
        try:
            reply = action(*arguments)
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a learner's function are answers, too
            reply = self.failure(error)
        try:
            text = json.dumps(reply)
            if len(text) > MOST_BYTES:  # and all of it is ASCII
                raise ValueError(f"it takes more than {MOST_BYTES >> 20} MB")
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps(self.failure(error))
        self.connection.send_bytes(text.encode("utf-8", "replace"))

    def receive(self):
        shells, rest = pickle.loads(self.connection.recv_bytes())
        made = {"whole": lambda v: v, "empty": lambda v: v(), "bare": lambda v: bare(*v)}
        table = None if shells is None else [made[kind](value) for kind, value in pickle.loads(shells)]
        message = self.load(rest, (self.tables or [[]])[-1] if table is None else table)
        return message if table is None else [*message, table]

    def load(self, data, table):
        unpickler = pickle.Unpickler(io.BytesIO(data))
        found = {
            "shell": lambda number: table[number],
            "theirs": lambda number: Theirs(self, number),
            "yours": lambda number: self.kept[number],
            "module": importlib.import_module,
            "distant": self.stand_in,
        }
        unpickler.persistent_load = lambda pid: found[pid[0]](pid[1])
        return unpickler.load()

    @staticmethod
    def fill(shell, content):
        if isinstance(shell, list):
            shell[:] = content
        elif isinstance(shell, dict):
            shell.clear()
            shell.update(content)
        elif isinstance(shell, set):
            shell.clear()
            shell |= content
        elif hasattr(shell, "copy_"):
            with sys.modules["torch"].no_grad():
                shell.copy_(content)
        elif type(shell).__module__ == "numpy":
            shell[...] = content
        else:
            shell.__dict__.clear()
            shell.__dict__.update(content)

    # What can be asked.

    def on_name(self, name):
        if name not in self.names:
            return {"missing": name}
        return {"value": self.encode(self.names[name], [])}

    def on_call(self, number, args, kwargs, contents, operate, table):
        for shell, content in zip(table, contents, strict=True):
            self.fill(shell, self.load(content, table))
        before = [self.content(shell, table) for shell in table]
        self.tables.append(table)
        try:
            with self.elsewhere(operate):
                result = self.kept[number](*args, **kwargs)
        finally:
            self.tables.pop()
        value = self.encode(result, table)
        if isinstance(value, dict) and "iterator" in value:
            self.iterating[value["iterator"]] = table
        return {"value": value, "changed": self.changes(table, before)}

    def on_next(self, number):
        table = self.iterating.get(number, [])
        before = [self.content(shell, table) for shell in table]
        self.tables.append(table)
        try:
            value = next(self.kept[number])
        except StopIteration:
            return {"stop": True, "changed": self.changes(table, before)}
        finally:
            self.tables.pop()
        return {"value": self.encode(value, table), "changed": self.changes(table, before)}

    def on_attribute(self, number, name):
        return {"value": self.encode(getattr(self.kept[number], name), [])}

    def ask_back(self, ref, name, args, kwargs):
        table = self.tables[-1] if self.tables else []
        question = {"ask": ref, "attribute": name}
        if args is not None:
            question["args"] = [self.encode(a, table) for a in args]
            question["kwargs"] = {k: self.encode(v, table) for k, v in kwargs.items()}
        self.connection.send_bytes(json.dumps(question).encode("utf-8", "replace"))
        verb, rest = self.serve()
        if verb == "return":
            value, updates = rest[:2]
            for index, content in updates:
                self.fill(table[index], self.load(content, table))
            return value
        if verb == "raise":
            token, kind, message = rest[:3]
            error = kind(message)
            error.token = token
            raise error
        raise EOFError("the grader has hung up")

    # Tensors that stay with the grader: each operation on them is done there.

    @contextlib.contextmanager
    def elsewhere(self, operate):
        if operate is None:
            yield
            return
        there = self.there

        class Elsewhere(importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return there(function, args, kwargs)

        self.operate = operate
        try:
            with Elsewhere():
                yield
        finally:
            self.operate = None

    def there(self, function, args, kwargs):
        """Ask for an operation; where the data lies is not this side's to say."""
        made = function.decompose(*args, **(kwargs or {}))  # in inference mode, what is made of others arrives whole
        if made is not NotImplemented:
            return made
        kwargs = {k: v for k, v in (kwargs or {}).items() if k not in ("device", "layout", "pin_memory")}
        if "memory_format" in kwargs:
            kwargs["memory_format"] = str(kwargs["memory_format"])
        return self.operate(str(function), list(args), kwargs)

    def stand_in(self, about):
        """A tensor without data for one that the grader has."""
        number, shape, stride, offset, dtype = about
        if number not in self.distant:
            torch = importlib.import_module("torch")
            self.distant[number] = torch.Tensor._make_wrapper_subclass(
                self.distant_kind(torch),
                shape,
                strides=stride,
                storage_offset=offset,
                dtype=getattr(torch, dtype.removeprefix("torch.")),
            )
            self.distant[number].distant = number
        return self.distant[number]

    def distant_kind(self, torch):
        if self.kind is None:
            there = self.there

            class Tensor(torch.Tensor):
                __torch_function__ = torch._C._disabled_torch_function_impl

                @classmethod
                def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                    return there(function, args, kwargs)

                def numpy(self, *_, **__):
                    raise TypeError("stay in torch: here each operation of torch is counted, and numpy's cannot be")

                __array__ = tolist = numpy

                def __repr__(self, *_, **__):
                    return f"a tensor of shape {list(self.shape)}"

            self.kind = Tensor
        return self.kind

    # How things are told.

    def keep(self, thing):
        number = self.numbers.get(id(thing))
        if number is None:
            number = self.numbers[id(thing)] = len(self.kept)
            self.kept.append(thing)
        return number

    def content(self, shell, table):
        """What is in a mutable thing, encoded; of an object its attributes one by one."""
        if isinstance(shell, (list, dict, set)) or hasattr(shell, "copy_") or type(shell).__module__ == "numpy":
            return {"content": self.plain(shell, table, 0)}
        return {"state": {k: self.encode(v, table, 1) for k, v in vars(shell).items()}}

    def changes(self, table, before):
        changed = {}
        for index, (shell, old) in enumerate(zip(table, before, strict=True)):
            new = self.content(shell, table)
            if "state" in new:
                state = {k: v for k, v in new["state"].items() if k not in old["state"] or old["state"][k] != v}
                new = {"state": state} if state else old
            if new != old:
                changed[index] = new
        return changed

    def encode(self, value, table, depth=0):
        if value is None or value is True or value is False or type(value) in (int, float, str):
            return value
        for index, shell in enumerate(table):
            if value is shell:
                return {"yours": index}
        if isinstance(value, Theirs):
            return {"ref": object.__getattribute__(value, "__dict__")["_ref"]}
        if type(value) is self.kind:
            return {"ref": value.distant}
        if depth > DEEPEST:
            return {"opaque": "deeply nested value"}
        return self.plain(value, table, depth)

    def plain(self, value, table, depth):
        inner = depth + 1
        if isinstance(value, bool):
            return bool(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": base64.b64encode(bytes(value)).decode()}
        if value is ...:
            return {"ellipsis": True}
        if isinstance(value, dict):
            return {"dict": [[self.encode(k, table, inner), self.encode(v, table, inner)] for k, v in value.items()]}
        for kind, name in ((list, "list"), (tuple, "tuple"), ((set, frozenset), "set"), (collections.deque, "list")):
            if isinstance(value, kind):
                return {name: [self.encode(v, table, inner) for v in value]}
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            item = value.item()
            return self.encode(float(item) if isinstance(item, numpy.generic) else item, table, inner)
        return self.array(value, table, inner, torch, numpy) or self.reference(value, table, inner)

    def array(self, value, table, inner, torch, numpy):
        if torch is not None:
            if isinstance(value, torch.Tensor):
                whole = value.detach().cpu().contiguous().reshape(-1)
                data = whole.resolve_conj().resolve_neg().view(torch.uint8).numpy().tobytes() if whole.numel() else b""
                name = str(value.dtype).removeprefix("torch.")
                return {"tensor": base64.b64encode(data).decode(), "dtype": name, "shape": list(value.shape)}
            if isinstance(value, torch.dtype):
                return {"dtype": str(value).removeprefix("torch.")}
            if isinstance(value, torch.device):
                return {"device": str(value)}
        if numpy is not None:
            if isinstance(value, numpy.ndarray):
                if value.dtype.kind not in "biufc":
                    return {"list": [self.encode(v, table, inner) for v in value.tolist()]}
                data = base64.b64encode(numpy.ascontiguousarray(value).tobytes()).decode()
                return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
        return None

    def reference(self, value, table, inner):
        if hasattr(type(value), "__float__"):  # Decimal, Fraction and the like
            with contextlib.suppress(Exception):
                return float(value)
        if isinstance(value, type):
            return {"function": self.keep(value), "name": value.__name__, "stub": self.stubs(value), "blank": False}
        if callable(value):
            return {
                "function": self.keep(value),
                "name": str(getattr(value, "__name__", type(value).__name__)),
                "stub": self.is_stub(value),
                "blank": "YOUR CODE HERE" in self.source(value),
            }
        if hasattr(value, "__next__"):
            return {"iterator": self.keep(value), "name": type(value).__name__}
        if isinstance(value, collections.abc.Collection):  # a range, the values of a dictionary
            return {"list": [self.encode(v, table, inner) for v in value]}
        return {"object": self.keep(value), "name": type(value).__name__}

    def stubs(self, kind):
        return any(self.is_stub(value) for value in vars(kind).values())

    @staticmethod
    def is_stub(function):
        return importlib.import_module("helpers.blanks").is_stub(function)

    @staticmethod
    def source(function):
        try:
            return inspect.getsource(function)
        except (OSError, TypeError):
            return ""

    def failure(self, error):
        """What went wrong, and in which line of the notebook."""
        function = line = ""
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if trace.tb_frame.f_globals is self.names:
                function, line = code.co_name, linecache.getline(code.co_filename, trace.tb_lineno).strip()
            trace = trace.tb_next
        try:
            message = str(error)
        except Exception:
            message = ""
        token = getattr(error, "token", None)
        return {
            "error": type(error).__name__,
            "message": message[:500],
            "function": function,
            "line": line[:200],
            "token": token if type(token) is int else None,
        }


def main(address):
    streams = sys.stdout, sys.stderr
    conversation = Conversation(Client(address, family="AF_UNIX"), sys.modules["__main__"].__dict__)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    try:
        with contextlib.suppress(EOFError, OSError):
            conversation.serve()
    finally:
        sys.stdout, sys.stderr = streams
        conversation.connection.close()
