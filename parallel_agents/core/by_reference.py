"""Tuples of many arrays that compiled code takes by their address.

numba passes a tuple by value: a function of a hundred arrays has about a thousand parameters, at every call of it too,
and takes minutes to compile. By reference it is one pointer, and an array of it is read where it is used:

>>> import numpy as np
>>> from typing import NamedTuple
>>> class Cells(NamedTuple):
...     size: int
...     area: np.ndarray
>>> cells = by_reference(Cells(3, np.arange(6.0).reshape(2, 3)))
>>> @numba.njit
... def corner(cells):
...     return cells.size + cells.area[1, 2]
>>> float(corner(cells))
8.0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, models, register_model, unbox

from parallel_agents.core.compiled import described
from parallel_agents.core.errors import ContractError

types: Any = numba.types  # mypy finds only some of them
Fields = TypeVar("Fields", bound=tuple[Any, ...])


def by_reference(fields: Fields) -> Fields:
    """Return a named tuple of arrays, whole numbers and further such tuples; its fields are read as before."""
    return cast(Fields, _ByReference(fields))


class ReferenceType(types.Type):  # type: ignore[misc]
    """The type of a tuple by reference, for compiled code: its fields with their types and places."""

    def __init__(self, kind: Any) -> None:
        self.members = dict(zip(kind.fields, kind.types, strict=True))
        sizes = [5 + 2 * own.ndim if isinstance(own, types.Array) else 1 for own in kind.types]
        self.places = dict(zip(kind.fields, np.cumsum([0, *sizes]).tolist(), strict=False))
        super().__init__(f"reference to {described((kind,))}")


class _ByReference:
    """A named tuple, and its fields as words at an address."""

    def __init__(self, fields: Any) -> None:
        self._fields = fields
        forms = type(fields), *map(_form, fields)
        if forms not in _kinds:
            _kinds[forms] = ReferenceType(numba.typeof(fields))
        self._numba_type_ = _kinds[forms]
        self._words = np.array([word for own in fields for word in _words(own)], np.int64)
        self.address = self._words.ctypes.data
        """Where the fields are described: a place that stays the same while this object lives."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fields, name)

    def __reduce__(self) -> Any:
        raise ContractError("a tuple by reference has one address and cannot be copied: make another of copied fields")


_kinds: dict[Any, ReferenceType] = {}
"""The types of tuples, by what they follow from: numba takes longer to find a type than to read all fields."""


def _form(own: Any) -> Any:
    """Return what the type of a field follows from."""
    if isinstance(own, np.ndarray):
        return own.dtype, own.ndim, own.flags.num
    return own._numba_type_ if isinstance(own, _ByReference) else type(own)


def _words(own: Any) -> Iterator[int]:
    """Yield the words of a field in the order of numba's own arrays: owner, parent, size, data, shape and strides."""
    if isinstance(own, np.ndarray):
        yield from (0, 0, own.size, own.itemsize, own.ctypes.data, *own.shape, *own.strides)
    elif isinstance(own, _ByReference | int):
        yield own.address if isinstance(own, _ByReference) else own
    else:
        raise ContractError(f"a field is a {type(own).__name__}: give arrays, whole numbers, and tuples by reference")


register_model(ReferenceType)(models.OpaqueModel)


@unbox(ReferenceType)  # type: ignore[untyped-decorator]
def _unbox(kind: Any, own: Any, c: Any) -> NativeValue:
    """Emit code that reads the address."""
    address = c.pyapi.object_getattr_string(own, "address")
    pointer = c.builder.inttoptr(c.pyapi.long_as_longlong(address), c.context.get_value_type(kind))
    c.pyapi.decref(address)
    return NativeValue(pointer)


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    """Tell numba the types of the fields."""

    key = ReferenceType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        return kind.members.get(name)


@lower_getattr_generic(ReferenceType)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, kind: Any, pointer: Any, name: str) -> Any:
    """Emit code that reads a field. An array has no owner there: the Python object keeps it alive."""
    own = kind.members[name]
    place = builder.gep(pointer, [context.get_constant(types.intp, 8 * kind.places[name])])
    value = builder.load(builder.bitcast(place, context.get_value_type(own).as_pointer()))
    if isinstance(own, types.Array):
        for owner in range(2):
            value = builder.insert_value(value, value.type.elements[owner](None), owner)
    return value
