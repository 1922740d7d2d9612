"""All three gradients in one kernel, key tile by key tile: five products where two kernels need seven.

Each program holds 128 keys, as in `key_gradients.py`. The gradients of the scores are also written to shared memory,
from where both warpgroups take them for the gradient of the queries, one tile later. Programs add to it in float32, by
TMA, in whatever order they come: the last bits of d_query differ between calls.

With 128 dims a warpgroup computes half of the columns of a tile of 64 queries, with 64 dims half of 128 queries. A
warpgroup overwrites gradients of scores only after the other one has read them: that it has finished the tile after
them is the proof.
"""

from triton.experimental import gluon  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon.language.nvidia.hopper import (  # pyright: ignore[reportMissingImports]
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from rearview.attention.engines.hopper.kernels.dialect import add_tile, reinterpreted, store_tile, wait_for_stores
from rearview.attention.engines.hopper.kernels.key_gradients import VISIT, produce_queries
from rearview.attention.engines.hopper.kernels.tile import FIELDS, get, heard_bits


@gluon.jit
def _weighed(
    product, lse_mem, edge_mem, here, visits, visit, part, key, bits, mask, numbers, item,
    S: gl.constexpr, RANGES: gl.constexpr,
):  # fmt: skip
    """The weights [keys, queries] of 64 queries, and whether their tile is masked."""
    ACROSS: gl.constexpr = gl.SliceLayout(0, S)
    by_item, by_head = mask
    q_len, k_len, scale, heads, words = numbers
    weights = gl.exp2(product * scale - gl.expand_dims(lse_mem.index(here).load(ACROSS), 0))
    kind = get(visits, visit + 2)
    masked = (kind & 1) != 0
    if masked:
        if RANGES == 0:
            rows = get(visits, visit) + part * 64 + gl.arange(0, 64, layout=ACROSS)
            row = (item * by_item + get(visits, visit + 1) * by_head) * q_len * words
            keep = heard_bits(bits, row, words, gl.expand_dims(rows, 0), key, q_len, k_len)
        else:
            start = gl.expand_dims(edge_mem.index(here * 2).load(ACROSS), 0)
            end = gl.expand_dims(edge_mem.index(here * 2 + 1).load(ACROSS), 0)
            keep = (key >= start) & (key < end)
        weights = gl.where(keep, weights, 0.0)
    return weights, masked


@gluon.jit
def _score_gradient(weights, dp, delta, masked, S: gl.constexpr):
    ds = weights * (dp - gl.expand_dims(delta.load(gl.SliceLayout(0, S)), 0))
    if masked:
        # The product of what is not heard may be inf, and 0 x inf is NaN.
        ds = gl.where(weights > 0.0, ds, 0.0)
    return ds


@gluon.jit
def _issue(ds_mem, k_mem, held, zeros, stage, PARTS: gl.constexpr, ME: gl.constexpr):
    """The product for the gradient of a tile of queries: this warpgroup's columns, or its 64 rows."""
    if PARTS == 1:
        first = k_mem.index(held * 2).slice(ME * 64, 64, dim=1)
        second = k_mem.index(held * 2 + 1).slice(ME * 64, 64, dim=1)
        dq = warpgroup_mma(ds_mem.index(stage * 2).permute((1, 0)), first, zeros, use_acc=False, is_async=True)
        dq = warpgroup_mma(ds_mem.index(stage * 2 + 1).permute((1, 0)), second, dq, is_async=True)
    else:
        place = (stage * 2 + ME) * 2
        first = k_mem.index(held * 2)
        second = k_mem.index(held * 2 + 1)
        dq = warpgroup_mma(ds_mem.index(place).permute((1, 0)), first, zeros, use_acc=False, is_async=True)
        dq = warpgroup_mma(ds_mem.index(place + 1).permute((1, 0)), second, dq, is_async=True)
    return dq


@gluon.jit
def _add(dq_desc, dq_mem, dq, visits, visit, item, heads, PARTS: gl.constexpr, ME: gl.constexpr):
    dq_mem.index(ME).store(dq)
    fence_async_shared()
    row = get(visits, visit)
    line = item * heads + get(visits, visit + 1)
    if PARTS == 1:
        add_tile(dq_desc, [line, row, ME * 64], dq_mem.index(ME))
    else:
        add_tile(dq_desc, [line, row + ME * 64, 0], dq_mem.index(ME))


@gluon.jit
def _consume(
    dq_desc, dk_desc, dv_desc, bits, mask, numbers, gradient_scale, memory, visits, buffers, ds_mem, dq_mem, barriers,
    ds_full,
    DIM: gl.constexpr, PARTS: gl.constexpr, TILES: gl.constexpr, RANGES: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = dk_desc.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    KL: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16])
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=KL, k_width=2)
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    q_mem, do_mem, k_mem, v_mem, lse_mem, delta_mem, edge_mem = buffers
    kv_full, k_empty, v_empty, q_full, q_empty, do_full, told, heard = barriers
    heads = numbers[3]
    zeros = gl.zeros([64, 64], gl.float32, S)
    # The gradients of keys and values leave through the memory of those of queries: both together, or in turn.
    leaving = reinterpreted(dq_mem.index(ME), dtype, [128 // DIM, 64, DIM], TILE)
    done = 0
    turn = 0
    mbarrier.wait(told.index(0), 0)
    total = get(memory, 0)
    while total >= 0:
        slot = (turn & 1) * FIELDS
        tile = get(memory, slot + 1)
        item = get(memory, slot + 2)
        key_head = get(memory, slot + 3)
        mbarrier.arrive(heard.index(turn & 1), count=1)
        key = gl.expand_dims(tile * 128 + ME * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, S)), 1)
        dk = gl.zeros([64, DIM], gl.float32, KL)
        dv = gl.zeros([64, DIM], gl.float32, KL)
        held = turn % TILES
        keys = k_mem.index(held * 2 + ME)
        values = v_mem.index(ME)
        mbarrier.wait(kv_full.index(held), (turn // TILES) & 1)
        for step in range(total):
            stage = done & 1
            phase = (done >> 1) & 1
            visit = (done & 3) * VISIT
            if PARTS == 1:
                mbarrier.wait(q_full.index(stage), phase)
                score = warpgroup_mma(keys, q_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(stage), phase)
                dp = warpgroup_mma(values, do_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
                score = warpgroup_mma_wait(1, deps=[score])
                weights, masked = _weighed(
                    score, lse_mem, edge_mem, stage, visits, visit, 0, key, bits, mask, numbers, item, S, RANGES
                )
                operand = gl.convert_layout(weights.to(dtype), P)
                if step > 0:
                    # The other warpgroup has finished the last tile: its gradients of scores are there, and it has
                    # read those of the tile before.
                    mbarrier.wait(q_empty.index(stage ^ 1), ((done - 1) >> 1) & 1)
                dp = warpgroup_mma_wait(0, deps=[dp])
                dv = warpgroup_mma(operand, do_mem.index(stage), dv, is_async=True)
                ds = _score_gradient(weights, dp, delta_mem.index(stage), masked, S).to(dtype)
                ds_mem.index(stage * 2 + ME).store(ds)
                dk = warpgroup_mma(gl.convert_layout(ds, P), q_mem.index(stage), dk, is_async=True)
                # That of the last tile; at the first step it is of no use, and not added.
                dq = _issue(ds_mem, k_mem, held, zeros, stage ^ 1, PARTS, ME)
                fence_async_shared()
                wait_for_stores(0)
                dv, dk, dq = warpgroup_mma_wait(0, deps=[dv, dk, dq])
                mbarrier.arrive(q_empty.index(stage), count=1)
                if step > 0:
                    _add(dq_desc, dq_mem, dq, visits, ((done - 1) & 3) * VISIT, item, heads, PARTS, ME)
            else:
                if step > 0:
                    mbarrier.wait(ds_full.index(stage ^ 1), ((done - 1) >> 1) & 1)
                dq = _issue(ds_mem, k_mem, held, zeros, stage ^ 1, PARTS, ME)
                mbarrier.wait(q_full.index(stage), phase)
                score = warpgroup_mma(keys, q_mem.index(stage * 2).permute((1, 0)), zeros, use_acc=False, is_async=True)
                wait_for_stores(0)
                dq = warpgroup_mma_wait(1, deps=[dq])
                if step > 0:
                    _add(dq_desc, dq_mem, dq, visits, ((done - 1) & 3) * VISIT, item, heads, PARTS, ME)
                mbarrier.wait(do_full.index(stage), phase)
                dp = warpgroup_mma(values, do_mem.index(stage * 2).permute((1, 0)), zeros, use_acc=False, is_async=True)
                more = warpgroup_mma(
                    keys, q_mem.index(stage * 2 + 1).permute((1, 0)), zeros, use_acc=False, is_async=True
                )
                dp_more = dp
                for part in gl.static_range(2):
                    if part == 0:
                        score = warpgroup_mma_wait(2, deps=[score])
                    else:
                        score = warpgroup_mma_wait(3, deps=[more])
                    here = stage * 2 + part
                    weights, masked = _weighed(
                        score, lse_mem, edge_mem, here, visits, visit, part, key, bits, mask, numbers, item, S, RANGES
                    )
                    operand = gl.convert_layout(weights.to(dtype), P)
                    # Complete already: a boundary for the assembler.
                    mbarrier.wait(do_full.index(stage), phase)
                    if part == 0:
                        dp = warpgroup_mma_wait(1, deps=[dp])
                    else:
                        dv, dk, dp = warpgroup_mma_wait(0, deps=[dv, dk, dp_more])
                    ds = _score_gradient(weights, dp, delta_mem.index(here), masked, S).to(dtype)
                    ds_mem.index(here * 2 + ME).store(ds)
                    if part == 1:
                        fence_async_shared()
                        mbarrier.arrive(ds_full.index(stage), count=1)
                    dv = warpgroup_mma(operand, do_mem.index(here), dv, is_async=True)
                    dk = warpgroup_mma(gl.convert_layout(ds, P), q_mem.index(here), dk, is_async=True)
                    if part == 0:
                        dp_more = warpgroup_mma(
                            values, do_mem.index(stage * 2 + 1).permute((1, 0)), zeros, use_acc=False, is_async=True
                        )
                dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])
                mbarrier.arrive(q_empty.index(stage), count=1)
            done += 1
        mbarrier.arrive(v_empty.index(0), count=1)
        if total > 0:
            last = (done - 1) & 1
            if PARTS == 1:
                mbarrier.wait(q_empty.index(last), ((done - 1) >> 1) & 1)
            else:
                mbarrier.wait(ds_full.index(last), ((done - 1) >> 1) & 1)
            dq = _issue(ds_mem, k_mem, held, zeros, last, PARTS, ME)
            wait_for_stores(0)
            dq = warpgroup_mma_wait(0, deps=[dq])
            _add(dq_desc, dq_mem, dq, visits, ((done - 1) & 3) * VISIT, item, heads, PARTS, ME)
        mbarrier.arrive(k_empty.index(held), count=1)
        first = tile * 128 + ME * 64
        wait_for_stores(0)
        leaving.index(0).store(dv.to(dtype))
        fence_async_shared()
        store_tile(dv_desc, [item, key_head, first, 0], leaving.index(0))
        if DIM == 128:
            wait_for_stores(0)
        leaving.index(128 // DIM - 1).store((dk * gradient_scale).to(dtype))
        fence_async_shared()
        store_tile(dk_desc, [item, key_head, first, 0], leaving.index(128 // DIM - 1))
        turn += 1
        mbarrier.wait(told.index(turn & 1), (turn >> 1) & 1)
        total = get(memory, (turn & 1) * FIELDS)
    wait_for_stores(0)


@gluon.jit(
    do_not_specialize=[
        "q_len", "k_len", "heads", "group_size", "n_tiles", "n_work", "group", "by_item", "by_head", "list_length",
        "words", "edge_lines", "scale", "gradient_scale",
    ],
    do_not_specialize_on_alignment=["entries", "counts", "bits", "counter"],
)  # fmt: skip
def fused_gradients(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, edge_desc, dq_desc, dk_desc, dv_desc, entries, counts, bits,
    counter, q_len, k_len, heads, group_size, n_tiles, n_work, group, by_item, by_head, list_length, words, edge_lines,
    scale, gradient_scale, DIM: gl.constexpr, PARTS: gl.constexpr, TILES: gl.constexpr, RANGES: gl.constexpr,
):  # fmt: skip
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    LINE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    NUMBERS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_mem = gl.allocate_shared_memory(q_desc.dtype, [2 * PARTS, 64, DIM], TILE)
    do_mem = gl.allocate_shared_memory(q_desc.dtype, [2 * PARTS, 64, DIM], TILE)
    k_mem = gl.allocate_shared_memory(k_desc.dtype, [2 * TILES, 64, DIM], TILE)
    v_mem = gl.allocate_shared_memory(k_desc.dtype, [2, 64, DIM], TILE)
    ds_mem = gl.allocate_shared_memory(k_desc.dtype, [4 * PARTS, 64, 64], TILE)
    dq_mem = gl.allocate_shared_memory(gl.float32, [2, 64, 64], WIDE)
    lse_mem = gl.allocate_shared_memory(gl.float32, [2 * PARTS, 64], LINE)
    delta_mem = gl.allocate_shared_memory(gl.float32, [2 * PARTS, 64], LINE)
    edge_mem = gl.allocate_shared_memory(gl.int32, [4 * PARTS, 64], LINE)
    memory = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], NUMBERS)
    visits = gl.allocate_shared_memory(gl.int32, [4 * VISIT, 1], NUMBERS)
    kv_full = gl.allocate_shared_memory(gl.int64, [TILES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [TILES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    do_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    ds_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    told = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    heard = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(TILES):
        mbarrier.init(kv_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
    mbarrier.init(v_empty.index(0), count=2)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=2)
        mbarrier.init(q_empty.index(i), count=2)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(ds_full.index(i), count=2)
        mbarrier.init(told.index(i), count=1)
        mbarrier.init(heard.index(i), count=2)
    descriptors = (q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, edge_desc)
    sizes = (n_tiles, n_work, group, heads // group_size, group_size, edge_lines)
    mask = (by_item, by_head)
    lists = (entries, counts, list_length)
    buffers = (q_mem, do_mem, k_mem, v_mem, lse_mem, delta_mem, edge_mem)
    barriers = (kv_full, k_empty, v_empty, q_full, q_empty, do_full, told, heard)
    numbers = (q_len, k_len, scale, heads, words)
    # Functions and their arguments must be written out inside the call.
    gl.warp_specialize([
        (produce_queries, (
            descriptors, sizes, mask, lists, counter, memory, visits, buffers, barriers, PARTS, 2, TILES, 1,
            RANGES,
        )),
        (_consume, (
            dq_desc, dk_desc, dv_desc, bits, mask, numbers, gradient_scale, memory, visits, buffers, ds_mem,
            dq_mem, barriers, ds_full, DIM, PARTS, TILES, RANGES, 0,
        )),
        (_consume, (
            dq_desc, dk_desc, dv_desc, bits, mask, numbers, gradient_scale, memory, visits, buffers, ds_mem,
            dq_mem, barriers, ds_full, DIM, PARTS, TILES, RANGES, 1,
        )),
    ], [4, 4], [240, 240])  # fmt: skip
