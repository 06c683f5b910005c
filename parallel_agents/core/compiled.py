"""Compile the kernels of the whole package: small functions into their callers (`njit`), large ones once
(`compiled_once`). Both use the cache of `core.kernel_cache`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, cast

import llvmlite.binding as llvm
import numba
from numba.core import cgutils, event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.imputils import fix_returning_optional, impl_ret_new_ref
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic

from parallel_agents.core.kernel_cache import SharedCache
from parallel_agents.core.types import Array

types: Any = numba.types  # mypy finds only some of them


def njit(function: Callable[..., Any] | None = None, *, cache: bool = False, **options: Any) -> Any:
    """Compile a function as numba's own decorator does, with a `SharedCache` and without an entry for callers in C."""
    if function is None:
        return partial(njit, cache=cache, **options)
    own = numba.njit(function, no_cfunc_wrapper=True, **options)
    if cache and not numba.config.DISABLE_JIT:
        own._cache = SharedCache(function)
    return own


class Announcement(event.Listener):  # type: ignore[misc]
    """Show, on a terminal, that kernels are being compiled, and how many were: the first start takes longer."""

    def __init__(self) -> None:
        self._depth = self._count = 0

    def on_start(self, event: Any) -> None:
        """Take the start of a compilation; what numba finds in its cache is none."""
        module = getattr(event.data["dispatcher"].py_func, "__module__", "")
        if self._depth or module.startswith("parallel_agents."):
            self._depth += 1
            self._count += 1
            self._show(f"compiling kernels for this machine, once: {self._count}")

    def on_end(self, event: Any) -> None:
        """Take the end of a compilation: remove the line, unless it was part of another one."""
        if self._depth:
            self._depth -= 1
            if not self._depth:
                self._show("")

    def _show(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


class _Load(NamedTuple):
    """Load the callee of a function that comes from the disk: numba calls this before it loads the function itself."""

    module: str
    name: str
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        getattr(import_module(self.module), self.name).callee.compile(self.arguments)


def _hash(arguments: tuple[Any, ...]) -> int:
    """Return a hash of the types of arguments."""
    return int.from_bytes(hashlib.sha256(described(arguments).encode()).digest()[:8], "little", signed=True)


def described(kinds: tuple[Any, ...]) -> str:
    """Return types in words; numba's own words do not tell named tuples of the same name apart."""
    words = []
    for kind in kinds:
        name = ""
        if isinstance(kind, types.BaseNamedTuple):
            name = f"{kind.instance_class.__module__}.{kind.instance_class.__qualname__}{kind.fields}"
        words.append(f"{name}({described(kind.types)})" if isinstance(kind, types.BaseTuple) else repr(kind))
    return ", ".join(words)


def _plain(own: Any) -> Any:
    """Return the type of an argument without what numba would compile a function once more for."""
    return types.int64 if isinstance(own, types.IntEnumMember) else types.unliteral(own)


class _Callee(CPUDispatcher):  # type: ignore[misc]
    """A compiled function that only compiled code calls, by a symbol, so that it is not compiled into its callers."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=options)
        self._cache = SharedCache(function)
        self._known: set[tuple[Any, ...]] = set()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Take numbers that are written in the caller, and members of an IntEnum, as what they are: integers."""
        named = {name: _plain(own) for name, own in kws.items()}
        return super().get_call_template(tuple(_plain(own) for own in args), named)

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def compile(self, arguments: tuple[Any, ...]) -> Any:
        """Compile or load the function for these types of arguments, and let calls of it use its symbol."""
        entry = super().compile(arguments)
        if arguments not in self._known:
            self._known.add(arguments)
            result = self.overloads[arguments]
            form, function = result.fndesc, self.py_func
            address = result.library.get_pointer_to_function(form.llvm_func_name)
            load = _Load(function.__module__, function.__qualname__, arguments)
            symbol = f"{load.module}.{load.name}{_hash(arguments)}"
            llvm.add_symbol(symbol, address)

            def call(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                convention = context.call_conv
                context.active_code_library._reload_init.add(load)
                kind = convention.get_function_type(form.restype, form.argtypes)
                callee = cgutils.get_or_insert_function(builder.module, kind, symbol)
                status, value = convention.call_function(builder, callee, form.restype, form.argtypes, values)
                with cgutils.if_unlikely(builder, status.is_error):
                    convention.return_status_propagate(builder, status)
                value = fix_returning_optional(context, builder, signature, status, value)
                return impl_ret_new_ref(context, builder, form.restype, value)

            call.signature, call.libs = form.argtypes, ()  # type: ignore[attr-defined]
            self.targetctx.remove_user_function(entry)
            self.targetctx._defns[entry].append(call, call.signature)  # type: ignore[attr-defined]
        return entry


class _Entry(CPUDispatcher):  # type: ignore[misc]
    """What Python calls: a function around a callee. Compiled code that calls it calls the callee itself."""

    callee: _Callee

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.callee)


def compiled_once(function: Callable[..., Any] | None = None, *, allocates: bool = False) -> Callable[..., Any]:
    """Compile a function when it is first called, and let compiled code call it by a symbol.

    numba compiles a function that is called as usual into each of its callers again, and into theirs: that is right for
    small functions, and takes long for large ones. The function stands at the top of a module.

    allocates: the function makes arrays. Without them no references are counted, which takes long to compile too.
    """
    if function is None:
        return partial(compiled_once, allocates=allocates)
    if numba.config.DISABLE_JIT:
        return function
    options = {"nopython": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": allocates}
    callee = _Callee(function, {**options, "no_cpython_wrapper": True})
    own = function.__code__
    given = ", ".join(own.co_varnames[: own.co_argcount])  # not *given: numba finds the type of a tuple slowly
    code = compile(f"lambda {given}: callee({given})", own.co_filename, "eval").co_consts[0]
    code = code.replace(co_firstlineno=own.co_firstlineno, co_name=own.co_name)  # profilers name file and line
    around = FunctionType(code, {"callee": callee}, function.__name__, function.__defaults__)
    around.__module__, around.__doc__ = function.__module__, function.__doc__
    around.__qualname__ = f"{function.__module__}.{function.__qualname__}"  # numba stores it under this name
    entry = _Entry(around, targetoptions=options)
    entry._cache = SharedCache(around)
    entry.callee, entry.py_func = callee, function
    return cast(Callable[..., Any], entry)


def address_of(function: Any, *examples: Any) -> tuple[int, int]:
    """Return where the code of a `compiled_once` function for arguments of these types is, and a hash of the types."""
    if numba.config.DISABLE_JIT:
        _functions.append(function)
        return len(_functions) - 1, 0
    arguments = tuple(types.unliteral(numba.typeof(own)) for own in examples)
    function.callee.compile(arguments)
    result = function.callee.overloads[arguments]
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name), _hash(arguments)


@intrinsic  # type: ignore[untyped-decorator]
def call_at(context: Any, place: Any, *given: Any) -> tuple[Any, Callable[..., Any]]:
    """Call the code at a place (2,) that `address_of` returned for arguments of these types.

    So compiled code calls functions that it does not know, and only those in use are compiled.
    """
    kinds = tuple(_plain(own) for own in given)

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        convention, data = context.call_conv, context.make_array(place)(context, builder, values[0]).data
        address, hashed = (builder.load(cgutils.gep_inbounds(builder, data, index)) for index in range(2))
        expected = context.get_constant(types.int64, _hash(kinds))
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", hashed, expected)):
            convention.return_user_exc(builder, TypeError, ("the code at an address takes other arguments",))
        passed = [
            context.cast(builder, builder.extract_value(values[1], index), own, kind)
            for index, (own, kind) in enumerate(zip(given, kinds, strict=True))
        ]
        form = convention.get_function_type(types.none, kinds)
        callee = builder.inttoptr(address, form.as_pointer())
        status, _ = convention.call_function(builder, callee, types.none, kinds, passed)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(place, types.StarArgTuple.from_types(given)), emit


_functions: list[Callable[..., None]] = []
"""What `call_at` calls where nothing is compiled."""

if numba.config.DISABLE_JIT:

    def call_at(place: Array, *given: Any) -> None:
        _functions[place[0]](*given)


event.register("numba:compile", Announcement())
