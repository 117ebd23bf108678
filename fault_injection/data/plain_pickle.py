"""Pickles read as data.  A pickle is a program; here it is taken apart, and nothing that it names is ever called.

The standard library splits a pickle into its instructions, and a loop here follows those that build values.  Where an
instruction names something, or calls it, a `Recorded` says so.  Names that the caller does not know are refused, and
so are instructions which no pickler of today writes.

>>> import pickle, pathlib
>>> read_as_data(pickle.dumps({"lr": 0.1, "place": pathlib.PurePosixPath("a")}, 2), {"pathlib.PurePosixPath"}, "it")
{'lr': 0.1, 'place': <pathlib.PurePosixPath>}
"""

import pickletools
from collections.abc import Callable, Container
from typing import Any

PERSISTENT = "persistent id"
# Instructions that push what they carry, and those that push a new value.
CARRIED = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
        *("SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES"),
        *("SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
NEW: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
IDLE = ("PROTO", "FRAME")
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # as Python 2 called them, and protocol 2 still does


class Recorded:
    """What a name in a pickle stands for, or the call of one: nothing was executed.

    Attributes:
      name: module and name, with a dot; `PERSISTENT` for what lies outside of the pickle.
      arguments: of the call; None where it is a name that was not called.
      state: what the object would have been given after the call.
      items: pairs that would have been put into it, or elements with None as their key.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None
        self.items: list[tuple[Any, Any]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"


def read_as_data(content: bytes, known: Container[str], what: str) -> Any:
    """The value that a pickle describes, of Python's plain types and `Recorded`.

    Args:
      known: names that may occur, such as `collections.OrderedDict`.
      what: has no need of other names, for the message.

    Raises:
      ValueError: the pickle is damaged, or has a name or an instruction that is not allowed.
    """
    machine = _Machine(known, what)
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name == "STOP":
                return machine.stack.pop()
            machine.follow(instruction.name, argument)
        raise ValueError("it has no end")
    except Exception as error:  # damage can surface anywhere: in an empty stack, or a key that cannot be one
        raise ValueError(f"the pickle cannot be read: {error or type(error).__name__}") from None


class _Machine:
    """The stack of a pickle's instructions, and what they have remembered.

    Attributes:
      stack: the values since the last mark; `marked` has those before each mark.
    """

    def __init__(self, known: Container[str], what: str) -> None:
        self.known, self.what = known, what
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Follow one instruction."""
        if name in CARRIED:
            self.stack.append(argument)
        elif name in NEW:
            self.stack.append(NEW[name]())
        elif name in FOLLOWED:
            FOLLOWED[name](self, argument)
        elif name not in IDLE:
            raise ValueError(f"it has the instruction {name}, which {self.what} has no need of; nothing was run")

    def since_mark(self) -> list[Any]:
        """Take what lies above the last mark."""
        found, self.stack = self.stack, self.marked.pop()
        return found

    def mark(self, _: Any) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def named(self, name: str) -> None:
        module, _, rest = name.partition(".")
        name = f"{RENAMED.get(module, module)}.{rest}"
        if name not in self.known:
            raise ValueError(f"it names {name}, which {self.what} has no need of; nothing was run")
        self.stack.append(Recorded(name))

    def from_stack(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("it names something by what is no text")
        self.named(f"{module}.{name}")

    def call(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.called(function, arguments)

    def called(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Recorded) or function.arguments is not None or type(arguments) is not tuple:
            raise ValueError("it calls what is no name, or without arguments; nothing was run")
        self.stack.append(Recorded(function.name, arguments))

    def call_with_names(self, _: Any) -> None:
        named, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.called(function, (*arguments, named))

    def outside(self, _: Any) -> None:
        self.stack.append(Recorded(PERSISTENT, (self.stack.pop(),)))

    def build(self, _: Any) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Recorded):
            raise ValueError("it gives a state to what has none")
        self.stack[-1].state = state

    def put(self, pairs: list[tuple[Any, Any]]) -> None:
        target = self.stack[-1]
        if isinstance(target, Recorded):
            target.items += pairs
        elif type(target) is dict:
            target.update(pairs)
        else:
            raise ValueError("it puts entries into what is no dictionary")

    def put_all(self, _: Any) -> None:
        self.put(_pairs(self.since_mark()))

    def put_one(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.put([(key, value)])

    def add(self, elements: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Recorded):
            target.items += [(None, element) for element in elements]
        elif type(target) is list:
            target += elements
        elif type(target) is set:
            target.update(elements)
        else:
            raise ValueError("it puts elements into what is no list")

    def add_all(self, _: Any) -> None:
        self.add(self.since_mark())

    def add_one(self, _: Any) -> None:
        element = self.stack.pop()
        self.add([element])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise ValueError("it takes more from its stack than there is")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def collected(self, kind: Callable[[list[Any]], Any]) -> None:
        found = kind(self.since_mark())
        self.stack.append(found)

    def remember(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def recall(self, number: int) -> None:
        self.stack.append(self.memo[number])


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


FOLLOWED: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": lambda machine, _: (machine.since_mark(), None)[1],
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GLOBAL": lambda machine, name: machine.named(name.replace(" ", ".", 1)),
    "STACK_GLOBAL": _Machine.from_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_names,
    "BINPERSID": _Machine.outside,
    "BUILD": _Machine.build,
    "SETITEM": _Machine.put_one,
    "SETITEMS": _Machine.put_all,
    "APPEND": _Machine.add_one,
    "APPENDS": _Machine.add_all,
    "ADDITEMS": _Machine.add_all,
    "LIST": lambda machine, _: machine.collected(list),
    "TUPLE": lambda machine, _: machine.collected(tuple),
    "DICT": lambda machine, _: machine.collected(lambda flat: dict(_pairs(flat))),
    "FROZENSET": lambda machine, _: machine.collected(frozenset),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
}
