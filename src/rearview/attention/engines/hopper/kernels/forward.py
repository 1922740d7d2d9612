"""The forward kernel: one producer warpgroup loads by TMA, and each consumer warpgroup computes 64 queries of a block.

Persistent: a program takes the next block from a counter, which the last program to ask sets back to 0. The producer
tells the consumers through shared memory which block it is and which tiles of keys it visits. With two buffers of
queries it loads those of the next block, and its first keys, while this block is computed.

The wait for the next tile of keys between the softmax and the wait for the product with the values is a boundary that
keeps the assembler from waiting before the softmax, which would leave the tensor cores idle during it.
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
    LN_2,
    LOG2_E,
    NOTHING,
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
    HEIGHT: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, QUERIES: gl.constexpr,
    RANGES: gl.constexpr,
):  # fmt: skip
    q_desc, k_desc, v_desc = descriptors
    q_mem, k_mem, v_mem = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, told, heard = barriers
    n_work, heads, entries = sizes[1], sizes[3], lists[0]
    done = 0
    turn = 0
    programs = gl.num_programs(0)
    work = gl.program_id(0)
    upcoming = work
    found = block_at(work, sizes, mask, lists, CONSUMERS, WIDTH, RANGES)
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
        for each in gl.static_range(CONSUMERS):
            to = turn % QUERIES * CONSUMERS + each
            mbarrier.wait(q_empty.index(to), ((turn // QUERIES) & 1) ^ 1)
            mbarrier.expect(q_full.index(to), q_desc.block_type.nbytes)
            row = (block * CONSUMERS + each) * HEIGHT
            load_tile(q_desc, [item, q_head, row, 0], q_full.index(to), q_mem.index(to))
        for step in range(count):
            here, from_below, from_above, in_first = tile_at(step, visits, entries, RANGES)
            stage = done % STAGES
            phase = (done // STAGES) & 1
            mbarrier.wait(k_empty.index(stage), phase ^ 1)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            load_tile(k_desc, [item, k_head, here * WIDTH, 0], k_full.index(stage), k_mem.index(stage))
            mbarrier.wait(v_empty.index(stage), phase ^ 1)
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            load_tile(v_desc, [item, k_head, here * WIDTH, 0], v_full.index(stage), v_mem.index(stage))
            done += 1
            if step == 0:
                # The next block, while the first loads are under way.
                upcoming = gl.atomic_add(counter, 1) + programs
                found = block_at(upcoming, sizes, mask, lists, CONSUMERS, WIDTH, RANGES)
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
def _folded(x, MAXIMUM: gl.constexpr, COLUMNS: gl.constexpr):
    """The maxima or sums over pairs of columns, and over pairs of these, until there are 8."""
    HALVINGS: gl.constexpr = 4 if x.shape[1] == 128 else 3
    for _ in gl.static_range(HALVINGS):
        left, right = gl.split(gl.permute(gl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
        if MAXIMUM:
            x = gl.maximum(left, right)
        else:
            x = left + right
    return gl.convert_layout(x, COLUMNS, assert_trivial=True)


@gluon.jit
def _weights(score, largest, total, scale, S: gl.constexpr, COLUMNS: gl.constexpr, FOLD: gl.constexpr):
    """One step of the softmax: the weights, the factor for what was summed up before, and the new maximum and sum.

    With FOLD the maximum and the sum of a row are trees and no chains, which have a longer latency.
    """
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    folded = score
    if FOLD:
        folded = _folded(score, True, COLUMNS)
    found = gl.convert_layout(gl.max(folded, axis=1), ROW, assert_trivial=True)
    new = gl.maximum(largest, found * scale)
    weights = gl.exp2(score * scale - gl.expand_dims(new, 1))
    shrink = gl.exp2(largest - new)
    folded = weights
    if FOLD:
        folded = _folded(weights, False, COLUMNS)
    found = gl.convert_layout(gl.sum(folded, axis=1), ROW, assert_trivial=True)
    return weights, shrink, new, total * shrink + found


@gluon.jit
def _scored(
    product, here, from_below, from_above, in_first, rows, edges, bits, numbers, bias, keeping, queries, phase,
    WIDTH: gl.constexpr, S: gl.constexpr, APART: gl.constexpr, RANGES: gl.constexpr, PLAIN: gl.constexpr,
    SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    """The masked scores of a tile. With APART, the starts and the ends of the ranges are compared apart."""
    start, end, start_b, end_b = edges
    words, bit_row, hash_row, seed_low, seed_high, limit, kept = keeping
    query = gl.expand_dims(rows, 1)
    key = gl.expand_dims(here * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, S)), 0)
    if PLAIN:
        score = product
    else:
        score, bend = score_of(product, query, key, numbers, bias, SOFTCAP, ALIBI, BIAS)
    if RANGES == 0:
        if from_below:
            score = gl.where(heard_bits(bits, bit_row, words, query, key, numbers[0], numbers[1]), score, NOTHING)
    elif APART:
        # Most tiles at an edge of a range are at one edge only, and comparisons take as long as the softmax. The wait,
        # which is over already, keeps the compiler from computing a mask for every tile and selecting the scores.
        if from_below:
            mbarrier.wait(queries, phase)
            score = gl.where(key >= gl.expand_dims(gl.where(in_first, start, start_b), 1), score, NOTHING)
        if from_above:
            mbarrier.wait(queries, phase)
            score = gl.where(key < gl.expand_dims(gl.where(in_first, end, end_b), 1), score, NOTHING)
    elif from_below | from_above:
        first = gl.expand_dims(gl.where(in_first, start, start_b), 1)
        last = gl.expand_dims(gl.where(in_first, end, end_b), 1)
        score = gl.where((key >= first) & (key < last), score, NOTHING)
    return score


@gluon.jit
def _dropped(weights, here, rows, keeping, WIDTH: gl.constexpr, S: gl.constexpr, DROPOUT: gl.constexpr):
    if DROPOUT:
        words, bit_row, hash_row, seed_low, seed_high, limit, kept = keeping
        key = gl.expand_dims(here * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, S)), 0)
        weights = weights * kept_factor(hash_row + gl.expand_dims(rows, 1), key, seed_low, seed_high, limit, kept)
    return weights


@gluon.jit
def _consume(
    o_desc, lse, ranges, entries, bits, terms, numbers, seeds, memory, buffers, o_mem, barriers,
    HEIGHT: gl.constexpr, WIDTH: gl.constexpr, VALUE_DIM: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    QUERIES: gl.constexpr, FOLD: gl.constexpr, RANGES: gl.constexpr, PLAIN: gl.constexpr,
    SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr, SINKS: gl.constexpr, DROPOUT: gl.constexpr,
    ME: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = o_desc.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, VALUE_DIM, 16])
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    COLUMNS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    # Where that was measured to be faster.
    APART: gl.constexpr = FOLD or (RANGES == 2 and CONSUMERS == 2)
    slopes, sinks, bias = terms
    q_mem, k_mem, v_mem = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, told, heard = barriers
    q_len, k_len, q_start, scale, cap, heads, words, bias_item, bias_head, bias_query, bias_key = numbers
    seed_low, seed_high, limit, kept = seeds
    # Scores that are not plain are scaled already.
    factor = scale
    if not PLAIN:
        factor = scale * 0.0 + 1.0
    done = 0
    turn = 0
    zeros = gl.zeros([HEIGHT, WIDTH], gl.float32, S)
    count, block, head, mask_head, visits, start, end, start_b, end_b = next_block(
        memory, told, heard, turn, ranges, q_len, HEIGHT, CONSUMERS, RANGES, ME, ROW
    )
    while count > 0:
        own = turn % QUERIES * CONSUMERS + ME
        query = q_mem.index(own)
        first = (block * CONSUMERS + ME) * HEIGHT
        rows = first + gl.arange(0, HEIGHT, layout=ROW)
        edges = (start, end, start_b, end_b)
        slope = scale
        if ALIBI:
            slope = gl.load(slopes + head % heads) * LOG2_E
        own_bias = bias
        if BIAS:
            own_bias = bias + (head // heads).to(gl.int64) * bias_item + (head % heads).to(gl.int64) * bias_head
        score_numbers = (q_len, k_len, q_start, scale, cap, slope, bias_query, bias_key)
        keeping = (words, mask_head * q_len * words, head * q_len, seed_low, seed_high, limit, kept)
        largest = gl.full([HEIGHT], -1.0e30, gl.float32, ROW)
        total = gl.zeros([HEIGHT], gl.float32, ROW)
        acc = gl.zeros([HEIGHT, VALUE_DIM], gl.float32, O)
        stage = done % STAGES
        mbarrier.wait(q_full.index(own), (turn // QUERIES) & 1)
        mbarrier.wait(k_full.index(stage), (done // STAGES) & 1)
        score = warpgroup_mma(query, k_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(k_empty.index(stage), count=1)
        here, from_below, from_above, in_first = tile_at(0, visits, entries, RANGES)
        score = _scored(
            score, here, from_below, from_above, in_first, rows, edges, bits, score_numbers, own_bias, keeping,
            q_full.index(own), (turn // QUERIES) & 1,
            WIDTH, S, APART, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS,
        )  # fmt: skip
        weights, shrink, largest, total = _weights(score, largest, total, factor, S, COLUMNS, FOLD)
        weights = _dropped(weights, here, rows, keeping, WIDTH, S, DROPOUT)
        operand = gl.convert_layout(weights.to(dtype), P)
        done += 1
        mbarrier.wait(k_full.index(done % STAGES), (done // STAGES) & 1, pred=count > 1)
        for step in range(1, count):
            stage = done % STAGES
            last = (done - 1) % STAGES
            score = warpgroup_mma(query, k_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(last), ((done - 1) // STAGES) & 1)
            acc = warpgroup_mma(operand, v_mem.index(last), acc, is_async=True)
            here, from_below, from_above, in_first = tile_at(step, visits, entries, RANGES)
            score = warpgroup_mma_wait(1, deps=[score])
            mbarrier.arrive(k_empty.index(stage), count=1)
            score = _scored(
                score, here, from_below, from_above, in_first, rows, edges, bits, score_numbers, own_bias, keeping,
                q_full.index(own), (turn // QUERIES) & 1,
                WIDTH, S, APART, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS,
            )  # fmt: skip
            weights, shrink, largest, total = _weights(score, largest, total, factor, S, COLUMNS, FOLD)
            weights = _dropped(weights, here, rows, keeping, WIDTH, S, DROPOUT)
            coming = gl.convert_layout(weights.to(dtype), P)
            done += 1
            mbarrier.wait(k_full.index(done % STAGES), (done // STAGES) & 1, pred=(step + 1) < count)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_empty.index(last), count=1)
            acc = acc * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, O)), 1)
            operand = coming
        mbarrier.arrive(q_empty.index(own), count=1)
        last = (done - 1) % STAGES
        mbarrier.wait(v_full.index(last), ((done - 1) // STAGES) & 1)
        acc = warpgroup_mma(operand, v_mem.index(last), acc, is_async=True)
        # The ranges of the next block are read while this one is finished.
        turn += 1
        count, coming_block, coming_head, mask_head, visits, start, end, start_b, end_b = next_block(
            memory, told, heard, turn, ranges, q_len, HEIGHT, CONSUMERS, RANGES, ME, ROW
        )
        wait_for_stores(0)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(last), count=1)
        shrink = gl.full([HEIGHT], 1.0, gl.float32, ROW)
        if SINKS:
            sink = gl.load(sinks + head % heads).to(gl.float32) * LOG2_E
            new = gl.maximum(largest, sink)
            shrink = gl.exp2(largest - new)
            total = total * shrink + gl.exp2(sink - new)
            largest = new
        share = gl.where(total > 0, shrink / total, 0.0)
        acc = acc * gl.expand_dims(gl.convert_layout(share, gl.SliceLayout(1, O)), 1)
        o_mem.index(ME).store(acc.to(dtype))
        fence_async_shared()
        store_tile(o_desc, [head // heads, head % heads, first, 0], o_mem.index(ME))
        found = gl.where(total > 0, (largest + gl.log2(total)) * LN_2, NOTHING)
        gl.store(lse + head * q_len + rows, found, mask=rows < q_len)
        block = coming_block
        head = coming_head
    wait_for_stores(0)


@gluon.jit(
    do_not_specialize=[
        "q_len", "k_len", "q_start", "heads", "group_size", "n_blocks", "n_work", "group", "n_granules", "by_item",
        "by_head", "list_length", "words", "scale", "cap", "bias_item", "bias_head", "bias_query", "bias_key",
        "seed_low", "seed_high", "limit", "kept",
    ],
    do_not_specialize_on_alignment=[
        "lse", "starts", "ends", "granules", "entries", "counts", "bits", "counter", "slopes", "sinks", "bias",
    ],
)  # fmt: skip
def attention_forward(
    q_desc, k_desc, v_desc, o_desc, lse, starts, ends, granules, entries, counts, bits, counter, slopes, sinks, bias,
    q_len, k_len, q_start, heads, group_size, n_blocks, n_work, group, n_granules, by_item, by_head, list_length, words,
    scale, cap, bias_item, bias_head, bias_query, bias_key, seed_low, seed_high, limit, kept,
    HEIGHT: gl.constexpr, WIDTH: gl.constexpr, KEY_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, QUERIES: gl.constexpr, FOLD: gl.constexpr, REGISTERS: gl.constexpr,
    RANGES: gl.constexpr, PLAIN: gl.constexpr,
    SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr, SINKS: gl.constexpr, DROPOUT: gl.constexpr,
):  # fmt: skip
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_mem = gl.allocate_shared_memory(q_desc.dtype, [QUERIES * CONSUMERS, HEIGHT, KEY_DIM], TILE)
    k_mem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, WIDTH, KEY_DIM], TILE)
    v_mem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, WIDTH, VALUE_DIM], TILE)
    o_mem = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, HEIGHT, VALUE_DIM], TILE)
    memory = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [QUERIES * CONSUMERS, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [QUERIES * CONSUMERS, 1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    told = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    heard = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(QUERIES * CONSUMERS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    for i in gl.static_range(2):
        mbarrier.init(told.index(i), count=1)
        mbarrier.init(heard.index(i), count=CONSUMERS)
    sizes = (n_blocks, n_work, group, heads, n_granules)
    mask = (granules, by_item, by_head)
    lists = (entries, counts, list_length)
    buffers = (q_mem, k_mem, v_mem)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, told, heard)
    numbers = (q_len, k_len, q_start, scale, cap, heads, words, bias_item, bias_head, bias_query, bias_key)
    seeds = (seed_low, seed_high, limit, kept)
    terms = (slopes, sinks, bias)
    descriptors = (q_desc, k_desc, v_desc)
    ranges = (starts, ends)
    # Functions and their arguments must be written out inside the call.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_produce, (
                descriptors, sizes, mask, lists, counter, group_size, memory, buffers, barriers, HEIGHT,
                WIDTH, STAGES, CONSUMERS, QUERIES, RANGES,
            )),
            (_consume, (
                o_desc, lse, ranges, entries, bits, terms, numbers, seeds, memory, buffers, o_mem,
                barriers, HEIGHT, WIDTH, VALUE_DIM, STAGES, CONSUMERS, QUERIES, FOLD, RANGES, PLAIN, SOFTCAP,
                ALIBI, BIAS, SINKS, DROPOUT, 0,
            )),
            (_consume, (
                o_desc, lse, ranges, entries, bits, terms, numbers, seeds, memory, buffers, o_mem,
                barriers, HEIGHT, WIDTH, VALUE_DIM, STAGES, CONSUMERS, QUERIES, FOLD, RANGES, PLAIN, SOFTCAP,
                ALIBI, BIAS, SINKS, DROPOUT, 1,
            )),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (_produce, (
                descriptors, sizes, mask, lists, counter, group_size, memory, buffers, barriers, HEIGHT,
                WIDTH, STAGES, CONSUMERS, QUERIES, RANGES,
            )),
            (_consume, (
                o_desc, lse, ranges, entries, bits, terms, numbers, seeds, memory, buffers, o_mem,
                barriers, HEIGHT, WIDTH, VALUE_DIM, STAGES, CONSUMERS, QUERIES, FOLD, RANGES, PLAIN, SOFTCAP,
                ALIBI, BIAS, SINKS, DROPOUT, 0,
            )),
            (_consume, (
                o_desc, lse, ranges, entries, bits, terms, numbers, seeds, memory, buffers, o_mem,
                barriers, HEIGHT, WIDTH, VALUE_DIM, STAGES, CONSUMERS, QUERIES, FOLD, RANGES, PLAIN, SOFTCAP,
                ALIBI, BIAS, SINKS, DROPOUT, 1,
            )),
            (_consume, (
                o_desc, lse, ranges, entries, bits, terms, numbers, seeds, memory, buffers, o_mem,
                barriers, HEIGHT, WIDTH, VALUE_DIM, STAGES, CONSUMERS, QUERIES, FOLD, RANGES, PLAIN, SOFTCAP,
                ALIBI, BIAS, SINKS, DROPOUT, 2,
            )),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
