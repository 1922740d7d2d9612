"""The parts of Gluon that have other names in other versions of Triton (3.6 and newer)."""

from triton._C.libtriton import ir  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon.language._core import builtin  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon.language.nvidia.hopper import tma  # pyright: ignore[reportMissingImports]

load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
wait_for_stores = tma.store_wait


@builtin
def _reduce_add(descriptor, place, tile, _semantic=None):
    # Triton 3.6 has the instruction, and no name for it in Gluon.
    place = _semantic._convert_to_ir_values(place, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, descriptor.handle, place, tile.handle)


add_tile = tma.async_atomic_add if hasattr(tma, "async_atomic_add") else _reduce_add


@builtin
def reinterpreted(memory, dtype, shape, layout, _semantic=None):
    """The same shared memory, as another dtype and shape."""
    method = memory.reinterpret if hasattr(memory, "reinterpret") else memory._reinterpret
    return method(dtype, shape, layout, _semantic=_semantic)
