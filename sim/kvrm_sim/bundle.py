"""The arrays of a replica as compiled code is handed them: one address.

As a tuple they are two hundred words, which numba hands on, one by one, in every call that is not inlined: most of the
time of compiling the core went into that. So their addresses and shapes lie in one small table. Compiled code is given
its address, and reads an array out of it where it uses one; interpreted code has the tuple itself.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

import kvrm_sim.compiled as compiled
from kvrm_sim.state import Arrays

#: Words of the table an array: address of its first element, rows, columns.
WORDS = 3


def _layout() -> dict[str, tuple[int, np.dtype[Any], int]]:
    """By the name of an array: its place among them, dtype, number of dimensions."""
    hints = get_type_hints(Arrays, include_extras=True)
    return {
        name: (at, np.dtype(hints[name].__metadata__[0]), hints[name].__metadata__[1])
        for at, name in enumerate(Arrays._fields)
    }


LAYOUT = _layout()


class Bundle:
    """The table of one replica's arrays. It holds on to none of them: whoever has it has the arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self._words: NDArray[np.int64] = np.zeros((len(LAYOUT), WORDS), np.int64)
        #: What :func:`arrays_at` is given in compiled code.
        self.address = int(self._words.ctypes.data)
        for name, array in zip(Arrays._fields, arrays, strict=True):
            self.put(name, array)

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Another array in the place of one. Raises TypeError for one that compiled code would misread."""
        at, dtype, dimensions = LAYOUT[name]
        if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous:
            given = f"{array.dtype} of {array.ndim} dimensions{'' if array.flags.c_contiguous else ', with gaps'}"
            raise TypeError(f"array {name!r}: {given}; should be {dtype} of {dimensions}, without gaps")
        self._words[at] = (array.__array_interface__["data"][0], *array.shape, *(WORDS - 1 - dimensions) * (0,))


def arrays_at(handle: Any) -> Any:
    """The arrays that a replica's handle stands for: in compiled code those of the table at this address."""
    return handle


if compiled.MODE != "interpreted":
    import numba
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.core.typing.templates import AttributeTemplate, infer_getattr
    from numba.extending import intrinsic, lower_getattr_generic, models, register_model
    from numba.np.arrayobj import make_array, populate_array

    class ArraysType(types.Type):
        """The address of a table."""

        def __init__(self) -> None:
            super().__init__(name="kvrm_sim.Arrays")

    register_model(ArraysType)(models.OpaqueModel)

    _TYPES = {name: numba.typeof(np.zeros((0,) * n, dtype)) for name, (_, dtype, n) in LAYOUT.items()}

    @infer_getattr
    class _ArraysAttributes(AttributeTemplate):
        key = ArraysType

        def generic_resolve(self, _type: Any, name: str) -> Any:  # type: ignore[override]  # NotImplemented there
            return _TYPES.get(name)

    @lower_getattr_generic(ArraysType)
    def _read_array(context: Any, builder: Any, _type: Any, table: Any, name: str) -> Any:
        """Nothing is written to the table while compiled code runs: what was read once need not be read again."""
        at, dtype, dimensions = LAYOUT[name]
        word = ir.IntType(64)
        words = builder.bitcast(table, word.as_pointer())

        def read(place: int) -> Any:
            value = builder.load(builder.gep(words, [ir.Constant(word, WORDS * at + place)]))
            value.set_metadata("invariant.load", builder.module.add_metadata([]))
            return value

        array = make_array(_TYPES[name])(context, builder)
        shape = [read(1 + axis) for axis in range(dimensions)]
        size = ir.Constant(word, dtype.itemsize)
        strides = [size] if dimensions == 1 else [builder.mul(size, shape[1]), size]
        populate_array(
            array,
            data=builder.inttoptr(read(0), array.data.type),
            shape=cgutils.pack_array(builder, shape, word),
            strides=cgutils.pack_array(builder, strides, word),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    @intrinsic
    def arrays_at(_context: Any, _handle: Any) -> Any:
        """The arrays of the table at this address."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return ArraysType()(types.int64), generate
