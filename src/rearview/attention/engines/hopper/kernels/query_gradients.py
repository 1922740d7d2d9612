"""The gradient of queries: the walk of the forward kernel, with the weights computed again from the log-sum-exp.

One producer warpgroup loads by TMA, each of two consumer warpgroups holds 64 queries and the gradients of their
outputs. No sum is shared between programs, so the same call gives the same bits.
"""

from triton.experimental import gluon  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon.language.nvidia.hopper import (  # pyright: ignore[reportMissingImports]
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from rearview.attention.engines.hopper.kernels.dialect import load_tile, store_tile, wait_for_stores
from rearview.attention.engines.hopper.kernels.tile import (
    FIELDS,
    LOG2_E,
    block_at,
    heard_bits,
    kept_factor,
    next_block,
    put,
    put_block,
    score_of,
    tile_at,
)


@gluon.jit
def _produce(
    descriptors, sizes, mask, lists, counter, group_size, memory, buffers, barriers,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, QUERIES: gl.constexpr, RANGES: gl.constexpr,
):  # fmt: skip
    q_desc, do_desc, k_desc, v_desc = descriptors
    q_mem, do_mem, k_mem, v_mem = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, told, heard = barriers
    n_work, heads, entries = sizes[1], sizes[3], lists[0]
    done = 0
    turn = 0
    programs = gl.num_programs(0)
    work = gl.program_id(0)
    upcoming = work
    found = block_at(work, sizes, mask, lists, 2, WIDTH, RANGES)
    while work < n_work:
        slot = turn & 1
        mbarrier.wait(heard.index(slot), ((turn >> 1) & 1) ^ 1)
        put_block(memory, slot * FIELDS, found, RANGES)
        mbarrier.arrive(told.index(slot), count=1)
        block, head, mask_head, count, tile, full, full_end, first_count, tile_b, full_b, full_end_b = found
        visits = (tile, full, full_end, first_count, tile_b, full_b, full_end_b)
        item = head // heads
        q_head = head % heads
        k_head = q_head // group_size
        for each in gl.static_range(2):
            to = turn % QUERIES * 2 + each
            mbarrier.wait(q_empty.index(to), ((turn // QUERIES) & 1) ^ 1)
            mbarrier.expect(q_full.index(to), q_desc.block_type.nbytes + do_desc.block_type.nbytes)
            at = [item, q_head, (block * 2 + each) * 64, 0]
            load_tile(q_desc, at, q_full.index(to), q_mem.index(to))
            load_tile(do_desc, at, q_full.index(to), do_mem.index(to))
        for step in range(count):
            here, from_below, from_above, in_first = tile_at(step, visits, entries, RANGES)
            stage = done % STAGES
            phase = (done // STAGES) & 1
            at_key = [item, k_head, here * WIDTH, 0]
            mbarrier.wait(k_empty.index(stage), phase ^ 1)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            load_tile(k_desc, at_key, k_full.index(stage), k_mem.index(stage))
            mbarrier.wait(v_empty.index(stage), phase ^ 1)
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            load_tile(v_desc, at_key, v_full.index(stage), v_mem.index(stage))
            done += 1
            if step == 0:
                upcoming = gl.atomic_add(counter, 1) + programs
                found = block_at(upcoming, sizes, mask, lists, 2, WIDTH, RANGES)
        work = upcoming
        turn += 1
    slot = turn & 1
    mbarrier.wait(heard.index(slot), ((turn >> 1) & 1) ^ 1)
    put(memory, slot * FIELDS, 0)
    mbarrier.arrive(told.index(slot), count=1)
    # Every work item asks once: this program was the last of all to ask.
    if upcoming == n_work + programs - 1:
        gl.atomic_xchg(counter, 0)


@gluon.jit
def _weighed(
    product, here, masked, in_first, rows, log_sum, edges, bits, numbers, bias, keeping,
    WIDTH: gl.constexpr, S: gl.constexpr, RANGES: gl.constexpr, PLAIN: gl.constexpr, SOFTCAP: gl.constexpr,
    ALIBI: gl.constexpr, BIAS: gl.constexpr, DROPOUT: gl.constexpr,
):  # fmt: skip
    """The weights [queries, keys] of a tile, the tanh of its scores, and the dropout's factors."""
    start, end, start_b, end_b = edges
    words, bit_row, hash_row, seed_low, seed_high, limit, kept = keeping
    query = gl.expand_dims(rows, 1)
    key = gl.expand_dims(here * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, S)), 0)
    bend = product
    if PLAIN:
        weights = gl.exp2(product * numbers[3] - gl.expand_dims(log_sum, 1))
    else:
        score, bend = score_of(product, query, key, numbers, bias, SOFTCAP, ALIBI, BIAS)
        weights = gl.exp2(score - gl.expand_dims(log_sum, 1))
    if masked:
        if RANGES == 0:
            keep = heard_bits(bits, bit_row, words, query, key, numbers[0], numbers[1])
        elif RANGES == 1:
            keep = (key >= gl.expand_dims(start, 1)) & (key < gl.expand_dims(end, 1))
        else:
            first = gl.expand_dims(gl.where(in_first, start, start_b), 1)
            last = gl.expand_dims(gl.where(in_first, end, end_b), 1)
            keep = (key >= first) & (key < last)
        weights = gl.where(keep, weights, 0.0)
    factor = weights
    if DROPOUT:
        factor = kept_factor(hash_row + query, key, seed_low, seed_high, limit, kept)
    return weights, bend, factor


@gluon.jit
def _consume(
    dq_desc, lse, delta, ranges, entries, bits, terms, numbers, seeds, gradient_scale, memory, buffers, dq_mem,
    barriers,
    WIDTH: gl.constexpr, KEY_DIM: gl.constexpr, STAGES: gl.constexpr, QUERIES: gl.constexpr, RANGES: gl.constexpr,
    PLAIN: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr, DROPOUT: gl.constexpr,
    ME: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = dq_desc.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16])
    QL: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEY_DIM, 16])
    FOR_Q: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=QL, k_width=2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    slopes, bias = terms
    q_mem, do_mem, k_mem, v_mem = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, told, heard = barriers
    q_len, padded, k_len, q_start, scale, cap, heads, words, bias_item, bias_head, bias_query, bias_key = numbers
    seed_low, seed_high, limit, kept = seeds
    done = 0
    turn = 0
    zeros = gl.zeros([64, WIDTH], gl.float32, S)
    count, block, head, mask_head, visits, start, end, start_b, end_b = next_block(
        memory, told, heard, turn, ranges, q_len, 64, 2, RANGES, ME, ROW
    )
    while count > 0:
        own = turn % QUERIES * 2 + ME
        query = q_mem.index(own)
        d_out = do_mem.index(own)
        first = (block * 2 + ME) * 64
        rows = first + gl.arange(0, 64, layout=ROW)
        log_sum = gl.load(lse + head * padded + rows)
        row_delta = gl.load(delta + head * padded + rows)
        edges = (start, end, start_b, end_b)
        slope = scale
        if ALIBI:
            slope = gl.load(slopes + head % heads) * LOG2_E
        own_bias = bias
        if BIAS:
            own_bias = bias + (head // heads).to(gl.int64) * bias_item + (head % heads).to(gl.int64) * bias_head
        score_numbers = (q_len, k_len, q_start, scale, cap, slope, bias_query, bias_key)
        keeping = (words, mask_head * q_len * words, head * q_len, seed_low, seed_high, limit, kept)
        mbarrier.wait(q_full.index(own), (turn // QUERIES) & 1)
        dq = gl.zeros([64, KEY_DIM], gl.float32, QL)
        for step in range(count):
            stage = done % STAGES
            phase = (done // STAGES) & 1
            here, from_below, from_above, in_first = tile_at(step, visits, entries, RANGES)
            masked = from_below | from_above
            mbarrier.wait(k_full.index(stage), phase)
            score = warpgroup_mma(query, k_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(stage), phase)
            dp = warpgroup_mma(d_out, v_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1, deps=[score])
            weights, bend, factor = _weighed(
                score, here, masked, in_first, rows, log_sum, edges, bits, score_numbers, own_bias, keeping,
                WIDTH, S, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS, DROPOUT,
            )  # fmt: skip
            # Complete already: a boundary for the assembler, which would wait for the product before the weights.
            mbarrier.wait(v_full.index(stage), phase)
            dp = warpgroup_mma_wait(0, deps=[dp])
            mbarrier.arrive(v_empty.index(stage), count=1)
            if DROPOUT:
                dp = dp * factor
            ds = weights * (dp - gl.expand_dims(row_delta, 1))
            if SOFTCAP:
                ds = ds * (1.0 - bend * bend)
            if masked:
                # The product of what is not heard may be inf, and 0 x inf is NaN.
                ds = gl.where(weights > 0.0, ds, 0.0)
            operand = gl.convert_layout(ds.to(dtype), FOR_Q)
            dq = warpgroup_mma(operand, k_mem.index(stage), dq, is_async=True)
            done += 1
            dq = warpgroup_mma_wait(0, deps=[dq])
            mbarrier.arrive(k_empty.index(stage), count=1)
        mbarrier.arrive(q_empty.index(own), count=1)
        wait_for_stores(0)
        dq_mem.index(ME).store((dq * gradient_scale).to(dtype))
        fence_async_shared()
        store_tile(dq_desc, [head // heads, head % heads, first, 0], dq_mem.index(ME))
        turn += 1
        count, block, head, mask_head, visits, start, end, start_b, end_b = next_block(
            memory, told, heard, turn, ranges, q_len, 64, 2, RANGES, ME, ROW
        )
    wait_for_stores(0)


@gluon.jit(
    do_not_specialize=[
        "q_len", "padded", "k_len", "q_start", "heads", "group_size", "n_blocks", "n_work", "group", "n_granules",
        "by_item", "by_head", "list_length", "words", "scale", "cap", "gradient_scale", "bias_item", "bias_head",
        "bias_query", "bias_key", "seed_low", "seed_high", "limit", "kept",
    ],
    do_not_specialize_on_alignment=[
        "lse", "delta", "starts", "ends", "granules", "entries", "counts", "bits", "counter", "slopes", "bias",
    ],
)  # fmt: skip
def query_gradients(
    q_desc, do_desc, k_desc, v_desc, dq_desc, lse, delta, starts, ends, granules, entries, counts, bits, counter,
    slopes, bias, q_len, padded, k_len, q_start, heads, group_size, n_blocks, n_work, group, n_granules, by_item,
    by_head, list_length, words, scale, cap, gradient_scale, bias_item, bias_head, bias_query, bias_key, seed_low,
    seed_high, limit, kept,
    WIDTH: gl.constexpr, KEY_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, STAGES: gl.constexpr, QUERIES: gl.constexpr,
    RANGES: gl.constexpr, PLAIN: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr,
    DROPOUT: gl.constexpr,
):  # fmt: skip
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_mem = gl.allocate_shared_memory(q_desc.dtype, [2 * QUERIES, 64, KEY_DIM], TILE)
    do_mem = gl.allocate_shared_memory(q_desc.dtype, [2 * QUERIES, 64, VALUE_DIM], TILE)
    dq_mem = gl.allocate_shared_memory(q_desc.dtype, [2, 64, KEY_DIM], TILE)
    k_mem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, WIDTH, KEY_DIM], TILE)
    v_mem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, WIDTH, VALUE_DIM], TILE)
    memory = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [2 * QUERIES, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [2 * QUERIES, 1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    told = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    heard = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(2 * QUERIES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(told.index(i), count=1)
        mbarrier.init(heard.index(i), count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    descriptors = (q_desc, do_desc, k_desc, v_desc)
    sizes = (n_blocks, n_work, group, heads, n_granules)
    mask = (granules, by_item, by_head)
    lists = (entries, counts, list_length)
    buffers = (q_mem, do_mem, k_mem, v_mem)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, told, heard)
    ranges = (starts, ends)
    terms = (slopes, bias)
    numbers = (q_len, padded, k_len, q_start, scale, cap, heads, words, bias_item, bias_head, bias_query, bias_key)
    seeds = (seed_low, seed_high, limit, kept)
    # Functions and their arguments must be written out inside the call.
    gl.warp_specialize([
        (_produce, (
            descriptors, sizes, mask, lists, counter, group_size, memory, buffers, barriers, WIDTH, STAGES,
            QUERIES, RANGES,
        )),
        (_consume, (
            dq_desc, lse, delta, ranges, entries, bits, terms, numbers, seeds, gradient_scale, memory,
            buffers, dq_mem, barriers, WIDTH, KEY_DIM, STAGES, QUERIES, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS,
            DROPOUT, 0,
        )),
        (_consume, (
            dq_desc, lse, delta, ranges, entries, bits, terms, numbers, seeds, gradient_scale, memory,
            buffers, dq_mem, barriers, WIDTH, KEY_DIM, STAGES, QUERIES, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS,
            DROPOUT, 1,
        )),
    ], [4, 4], [240, 240])  # fmt: skip
