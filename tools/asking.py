"""The grader's half of a question: what a learner wrote in the sandbox, handed to the checks as if it were here.

Numbers, texts, lists, arrays and tensors come over as values. A function becomes a function that runs over there: its
arguments travel, what it changes in them is done here too, and functions and objects of a check that it is handed stay
here and are called back. Where a check counts memory traffic, tensors stay here as well (`tools.operations`).

So `check.grade` and hidden assertions run unchanged in this process, which no notebook can reach: all that comes back
is JSON, and all that it may ask for are public methods of what a check handed to it.
"""

import base64
import builtins
import collections
import copyreg
import io
import json
import operator
import pickle
import sys
import time
import types
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from tools.answering import MOST_BYTES

ANSWERING = Path(__file__).with_name("answering.py")
DEEPEST = 100
HERE = "judge"  # __name__ of the module that test cells run in
# Objects of these rooms travel with all that is in them, so that learners can work on them; others stay here.
VALUES = ("helpers.caches", "helpers.serving", "helpers.models.geometry", "helpers.models.counts")
TRUSTED = ("helpers", HERE)
NUMBERS = "biufc"


class NoAnswer(BaseException):  # a check catches every Exception, and this is no answer to judge
    """The kernel gave no usable answer; the message says why, about the submission."""


class TookTooLong(NoAnswer):
    """An exercise was given up: what it calls does not come back."""


class Replaced(Exception):
    """The learner's code put something in the place of what belongs to a check."""


class Theirs:
    """Something of the learner's that is neither value nor function: it lives over there and has a number."""

    def __init__(self, conversation: "Conversation", number: int, name: str):
        self.__dict__.update(_conversation=conversation, _number=number, _name=name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._conversation.attribute(self._number, name)

    def __repr__(self):
        return f"<a {self._name}>"


class TheirIterator(Theirs):
    """A generator or other iterator of the learner's."""

    def __iter__(self):
        return self

    def __next__(self):
        return self._conversation.next(self._number)


class Opaque:
    """A value that cannot be told in JSON; checks see that it is nothing they asked for."""


class Conversation:
    """Questions about one notebook's names, over one connection, until `deadline` (of time.monotonic)."""

    def __init__(self, connection: Connection, deadline: float):
        self.connection, self.deadline = connection, deadline
        self.handed: list = []  # what the other side knows by number
        self.numbers: dict[int, int] = {}
        self.calls: list[_Table] = []  # the mutable arguments of each call under way
        self.iterating: dict[int, _Table] = {}
        self.own: dict[int, tuple[object, int]] = {}  # id of a stand-in -> itself, its number over there
        self.broken = False  # a call was given up, so nothing more can be asked here
        self.failed: dict[int, BaseException] = {}  # what a check raised while it was called back

    # What can be asked.

    def value(self, name: str):
        """The learner's `name`. Raises `NameError` when the notebook does not define it."""
        reply = self._ask("name", name)
        if "missing" in reply:
            raise NameError(f"your notebook does not define {name}")
        return self.decoded(reply.get("value"), None)

    def call(self, number: int, args: tuple, kwargs: dict):
        counting = _traffic()
        with _unwatched():
            operate = None
            if counting:
                from tools.operations import Operations

                operations = Operations(counting)
                args, kwargs, operate = operations.distant(args), operations.distant(kwargs), operations.run
            table = _Table(self, (args, kwargs))
            self.calls.append(table)
            try:
                reply = self._ask("call", number, args, kwargs, table.contents(), operate, table=table)
                table.apply(reply.get("changed"))
                value = self.decoded(reply.get("value"), table)
                if counting:
                    value = operations.here(value)
            finally:
                self.calls.pop()
                if counting:
                    operations.end()
            if isinstance(value, TheirIterator):
                self.iterating[value._number] = table
            return value

    def next(self, number: int):
        with _unwatched():
            table = self.iterating.get(number)
            self.calls += [table] if table else []
            try:
                reply = self._ask("next", number)
                if table:
                    table.apply(reply.get("changed"))
                if "stop" in reply:
                    raise StopIteration
                return self.decoded(reply.get("value"), table)
            finally:
                if table:
                    self.calls.pop()

    def attribute(self, number: int, name: str):
        with _unwatched():
            return self.decoded(self._ask("attribute", number, name).get("value"), None)

    def close(self) -> None:
        try:
            self.connection.send_bytes(self._message(("bye",), None))
        except OSError:
            pass
        self.connection.close()

    # The conversation.

    def _ask(self, *question, table=None) -> dict:
        if self.broken:
            raise TookTooLong("an exercise's code did not come back in time")
        self.broken = True  # until the answer is here: a check may give up on a call and go on
        self._send(question, table)
        while True:
            reply = self._receive()
            if "ask" in reply:
                self.broken = False
                answer = self._called_back(reply)
                self.broken = True
                self._send(answer, None)
                continue
            self.broken = False
            if "error" in reply:
                raise self._failure(reply)
            return reply

    def _send(self, message: tuple, table) -> None:
        try:
            self.connection.send_bytes(self._message(message, table))
        except OSError:
            raise NoAnswer("its code stopped answering") from None

    def _message(self, message: tuple, table) -> bytes:
        shells = table.shells() if table else None
        return pickle.dumps((shells, self.dumps(list(message), table or (self.calls[-1] if self.calls else None))))

    def _receive(self) -> dict:
        left = self.deadline - time.monotonic()
        try:
            if left <= 0 or not self.connection.poll(left):
                raise TookTooLong("an exercise's code did not come back in time")
            reply = json.loads(self.connection.recv_bytes(MOST_BYTES))
        except EOFError:
            raise NoAnswer("its code stopped answering") from None
        except (OSError, ValueError, RecursionError) as error:
            raise NoAnswer(f"its code gave an answer that cannot be read ({type(error).__name__})") from None
        if not isinstance(reply, dict):
            raise NoAnswer("its code gave an answer that cannot be read")
        return reply

    def _called_back(self, question: dict) -> tuple:
        """Do what the learner's code asks of something that a check handed to it."""
        table = self.calls[-1] if self.calls else None
        try:
            number, name = question["ask"], question["attribute"]
            if type(number) is not int or not 0 <= number < len(self.handed):
                raise AttributeError("no such thing")
            target = self.handed[number]
            if name is not None:
                if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
                    raise AttributeError(f"{name!r} cannot be used from here")
                target = getattr(target, name)
            if "args" in question:
                args = [self.decoded(a, table) for a in question["args"]]
                kwargs = {k: self.decoded(v, table) for k, v in question["kwargs"].items()}
                target = _callable(target, name)(*args, **kwargs)
            elif not _may_be_handed(target):
                raise AttributeError(f"{name!r} cannot be used from here")
            return ("return", target, table.updates() if table else [])
        except NoAnswer:
            raise
        except Exception as error:
            self.failed[len(self.failed)] = error
            kind = type(error) if type(error).__module__ == "builtins" else RuntimeError
            kind = kind if kind.__init__ is not None and issubclass(kind, Exception) else RuntimeError
            return ("raise", len(self.failed) - 1, kind, str(error))

    def _failure(self, reply: dict) -> BaseException:
        token = reply.get("token")
        if type(token) is int and token in self.failed:
            return self.failed[token]
        name, message = str(reply["error"])[:80], str(reply.get("message", ""))[:500]
        kind = getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind is StopIteration:
            kind = type(name if name.isidentifier() else "Exception", (Exception,), {})
        try:
            error = kind(message)
        except TypeError:  # UnicodeDecodeError and its like want more than a message
            error = type(name, (Exception,), {})(message)
        # Where it happened, for the message: see helpers.check.
        error.place = str(reply.get("function", ""))[:80], str(reply.get("line", ""))[:200]
        return error

    # From here to there: pickled.

    def dumps(self, value, table) -> bytes:
        buffer = io.BytesIO()
        _Pickler(self, table, buffer).dump(value)
        return buffer.getvalue()

    def hand(self, thing) -> int:
        number = self.numbers.get(id(thing))
        if number is None:
            number = self.numbers[id(thing)] = len(self.handed)
            self.handed.append(thing)
        return number

    # From there to here: JSON.

    def decoded(self, told, table):
        try:
            return self._decode(told, table, 0)
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
            raise NoAnswer(f"its code gave an answer that cannot be read ({type(error).__name__}: {error})") from None

    def _decode(self, told, table, depth):
        if told is None or isinstance(told, (bool, int, float, str)):
            return told
        if not isinstance(told, dict) or depth > DEEPEST:
            raise ValueError("not an answer")

        def inner(part):
            return self._decode(part, table, depth + 1)

        if "yours" in told:
            return table.things[_index(told["yours"], table.things)]
        if "ref" in told:
            return self.handed[_index(told["ref"], self.handed)]
        for kind, make in (("list", list), ("tuple", tuple)):
            if kind in told:
                return make(inner(v) for v in told[kind])
        if "set" in told:
            return {_key(inner(v)) for v in told["set"]}
        if "dict" in told:
            return {_key(inner(k)): inner(v) for k, v in told["dict"]}
        if "bytes" in told:
            return base64.b64decode(told["bytes"])
        if "ellipsis" in told:
            return ...
        if "array" in told:
            dtype = np.dtype(told["dtype"])
            if dtype.kind not in NUMBERS:
                raise ValueError("no numbers")
            return np.frombuffer(base64.b64decode(told["array"]), dtype).reshape(_shape(told["shape"])).copy()
        if {"tensor", "dtype", "device"} & set(told):
            return _torch(told)
        if "function" in told:
            return self._function(told)
        if "iterator" in told or "object" in told:
            kind = type(_name(told), (TheirIterator if "iterator" in told else Theirs,), {})
            return self._known(kind(self, int(told.get("iterator", told.get("object"))), _name(told)))
        return type(_name(told), (Opaque,), {})()

    def _function(self, told: dict):
        number = int(told["function"])
        if told["stub"] is True:

            def stand_in(*arguments, **options):
                pass
        else:

            def stand_in(*args, **kwargs):
                return self.call(number, args, kwargs)

        stand_in.__name__ = stand_in.__qualname__ = _name(told)
        vars(stand_in).update(blank=told["blank"] is True, number=number)
        return self._known(stand_in)

    def _known(self, stand_in):
        number = stand_in.number if callable(stand_in) else stand_in._number
        self.own[id(stand_in)] = stand_in, number
        return stand_in


class _Table:
    """The mutable things among a call's arguments, numbered, and what was in each when both sides last agreed."""

    def __init__(self, conversation: Conversation, arguments):
        self.conversation, self.things, self.numbers = conversation, [], {}
        self._collect(arguments, 0)
        self.known: list[bytes] = []

    def _collect(self, value, depth: int) -> None:
        if depth > DEEPEST or id(value) in self.numbers or type(value) in PLAIN - {tuple}:
            return
        if isinstance(value, tuple):
            inside = value
        elif isinstance(value, (list, set)):
            inside = self._add(value)
        elif isinstance(value, dict):
            inside = [*self._add(value).keys(), *value.values()]
        elif _is_tensor(value) or isinstance(value, np.ndarray):
            self._add(value)
            return
        elif _value_class(value) and not _frozen(value):
            inside = list(vars(self._add(value)).values())
        else:
            return
        for part in list(inside):
            self._collect(part, depth + 1)

    def _add(self, value):
        self.numbers[id(value)] = len(self.things)
        self.things.append(value)
        return value

    def shells(self) -> bytes:
        """What each thing is made of over there before its content is known."""
        made = []
        for thing in self.things:
            if isinstance(thing, (list, dict, set)):
                kinds = (collections.OrderedDict, list, dict, set)
                made.append(("empty", next(kind for kind in kinds if isinstance(thing, kind))))
            elif _is_tensor(thing) or isinstance(thing, np.ndarray):
                made.append(("whole", thing))
            else:
                kind = _value_class(thing)
                made.append(("bare", (kind, _overridden(type(thing), kind))))
        return self.conversation.dumps(made, None)

    def contents(self) -> list[bytes]:
        self.known = [self._content(thing) for thing in self.things]
        return self.known

    def updates(self) -> list[tuple[int, bytes]]:
        """(number, content) of what has changed on this side since both sides last agreed."""
        now = [self._content(thing) for thing in self.things]
        changed = [(i, new) for i, (new, old) in enumerate(zip(now, self.known, strict=True)) if new != old]
        self.known = now
        return changed

    def _content(self, thing) -> bytes:
        return self.conversation.dumps(_Content(thing), self)

    def apply(self, changed) -> None:
        """Do here what the learner's code did to its arguments over there."""
        if not changed:
            return
        decoded = self.conversation.decoded
        try:
            for key, told in changed.items():
                number = _index(int(key), self.things)
                thing = self.things[number]
                if "state" in told:
                    for name, part in told["state"].items():
                        if isinstance(name, str) and name.isidentifier():
                            _set(thing, name, decoded(part, self))
                else:
                    _fill(thing, decoded(told["content"], self))
                self.known[number] = self._content(thing)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise NoAnswer(f"its code gave an answer that cannot be read ({type(error).__name__})") from None


class _Content:
    """Marks, for the pickler, that what is in a thing is meant, and not the thing itself."""

    def __init__(self, thing):
        self.thing = thing

    def __reduce__(self):
        thing = self.thing
        if isinstance(thing, (list, set)):
            return (list if isinstance(thing, list) else set), (tuple(thing),)
        if _is_tensor(thing):
            return _as_arrays(thing)
        if isinstance(thing, np.ndarray):
            return np.asarray, (thing.copy(),)
        return dict, (tuple((thing if isinstance(thing, dict) else vars(thing)).items()),)


class _Call:
    """Pickles as the result of a call that is made where it is unpickled."""

    def __init__(self, function, *args):
        self.made = function, args

    def __reduce__(self):
        return self.made


def _as_arrays(tensor):
    """How a tensor is pickled: a tenth of the time that torch takes for a small one. It arrives contiguous."""
    import torch

    data = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy()
    raw = _Call(torch.from_numpy, data)
    typed = _Call(operator.methodcaller("view" if data.size else "to", tensor.dtype), raw)
    return operator.methodcaller("reshape", tuple(tensor.shape)), (typed,)


PLAIN = {int, float, str, bool, bytes, type(None), tuple, _Content, _Call, operator.methodcaller}


class _Pickler(pickle.Pickler):
    def __init__(self, conversation: Conversation, table: _Table | None, buffer):
        super().__init__(buffer)
        self.conversation, self.table = conversation, table

    def persistent_id(self, value):
        kind = type(value)
        if kind in PLAIN:
            return None
        if self.table is not None and id(value) in self.table.numbers:
            return "shell", self.table.numbers[id(value)]
        if id(value) in self.conversation.own:
            return "yours", self.conversation.own[id(value)][1]
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        if _distant(value):
            tensor = value.tensor
            about = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), str(tensor.dtype)
            return "distant", (self.conversation.hand(value), *about)
        if _stays_here(value):
            return "theirs", self.conversation.hand(value)
        return None

    def reducer_override(self, value):
        if _is_tensor(value):
            return _as_arrays(value)
        kind = _value_class(value)
        if kind and kind is not type(value):  # a check's own subclass of it: over there it is what it was made from
            return copyreg.__newobj__, (kind,), dict(vars(value))
        return NotImplemented


def _value_class(value) -> type | None:
    """The class as which an object travels; None for what is no object of a room whose objects travel."""
    if not hasattr(value, "__dict__") or isinstance(value, type):
        return None
    for kind in type(value).__mro__:
        if kind.__module__.startswith(VALUES) and "<locals>" not in kind.__qualname__:
            return kind
    return None


def _overridden(kind: type, base: type) -> list[str]:
    """Methods of `base` that a check's own class has in their place."""
    own = dict.fromkeys(name for part in kind.__mro__[: kind.__mro__.index(base)] for name in vars(part))
    return [name for name in own if not name.startswith("__") and callable(getattr(base, name, None))]


def _frozen(value) -> bool:
    return bool(getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False))


def _stays_here(value) -> bool:
    if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinMethodType)):
        # What torch and numpy themselves need to be unpickled is found over there by its name.
        return (getattr(value, "__module__", None) or "").split(".")[0] not in ("torch", "numpy", "copyreg", "builtins")
    if isinstance(value, type) or _value_class(value) or _frozen(value):
        return False
    return type(value).__module__.split(".")[0] in TRUSTED or hasattr(value, "__next__")


def _may_be_handed(value) -> bool:
    """Whether the learner's code may have an attribute's value: data, or what was written for this course."""
    if callable(value):
        return (getattr(value, "__module__", None) or "").split(".")[0] in TRUSTED
    return not isinstance(value, types.ModuleType)


def _callable(target, name):
    """`target`, if a notebook may call it: handed over by a check, or a method that this course's code defines."""
    if name is not None and not _may_be_handed(target):
        raise AttributeError(f"{name!r} cannot be called from here")
    return target


def _set(thing, name: str, new) -> None:
    """Set an attribute that the learner's code set over there: to data, of the kind that was there.

    A function or an iterator of theirs in its place would answer each question of the check as it likes.
    """
    old, owned = vars(thing).get(name), getattr(type(thing), name, None)
    if name not in vars(thing) and (callable(owned) or hasattr(owned, "__get__")):
        raise Replaced(f"{type(thing).__name__}.{name} belongs to the course: call it, and leave it as it is")
    if old is not None and (isinstance(new, TheirIterator) or (callable(new) and not callable(old))):
        raise Replaced(f"{name} has to stay a {type(old).__name__}")
    if isinstance(old, (list, dict, set)) and type(old) is not type(new):
        family = next(kind for kind in (list, dict, set) if isinstance(old, kind))
        new = type(old)(new) if isinstance(new, family) else new  # an OrderedDict travels as a dict
    vars(thing)[name] = new


def _fill(thing, content) -> None:
    if isinstance(thing, list) and isinstance(content, list):
        thing[:] = content
    elif isinstance(thing, dict) and isinstance(content, dict):
        thing.clear()
        thing.update(content)
    elif isinstance(thing, set) and isinstance(content, set):
        thing.clear()
        thing |= content
    elif _is_tensor(thing) and tuple(content.shape) == tuple(thing.shape):
        thing.detach().copy_(content)
    elif isinstance(thing, np.ndarray) and content.shape == thing.shape:
        thing[...] = content
    else:
        raise ValueError("another kind of content")


def _is_tensor(value) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _distant(value) -> bool:
    operations = sys.modules.get("tools.operations")
    return operations is not None and isinstance(value, operations.Distant)


def _torch(told: dict):
    import torch

    if "device" in told:
        return torch.device(str(told["device"]))
    dtype = getattr(torch, str(told["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no such dtype")
    if "tensor" not in told:
        return dtype
    data = np.frombuffer(base64.b64decode(told["tensor"]), np.uint8).copy()
    if not data.size:
        return torch.zeros(0, dtype=dtype).reshape(_shape(told["shape"]))
    return torch.from_numpy(data).view(dtype).reshape(_shape(told["shape"]))


def _key(value):
    """What a range or a frozenset was over there: here a list or a set, and those are no keys."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return frozenset(value) if isinstance(value, set) else value


def _shape(shape) -> tuple[int, ...]:
    return tuple(int(n) for n in shape)


def _index(number, things) -> int:
    if type(number) is not int or not 0 <= number < len(things):
        raise IndexError("no such thing")
    return number


def _name(told: dict) -> str:
    name = str(told.get("name", "value"))[:80]
    return name if name.isidentifier() or name == "<lambda>" else "value"


def _modes() -> list:
    torch = sys.modules.get("torch")
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack() if torch else []


def _traffic():
    """The `Traffic` counter at work in this process, if any."""
    if not _modes():
        return None
    from helpers.exercises.traffic import Traffic

    return next((m for m in reversed(_modes()) if isinstance(m, Traffic)), None)


def _unwatched():
    """Inside the `with`, what this module does to tensors is not counted."""
    return sys.modules["torch"].utils._python_dispatch._disable_current_modes() if _modes() else nullcontext()
