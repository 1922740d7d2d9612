"""The gradients of keys and values: a program holds a tile of keys, and passes the queries that hear one of them.

Two consumer warpgroups hold 64 keys each and compute transposed tiles, keys x queries, so that the weights and their
gradients are the register operands of the products that are summed up. No sum is shared between programs: there are no
atomic additions, and the same call gives the same bits.

With AHEAD the scores of the next queries are issued right after the products of these, which takes more registers.
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
from rearview.attention.engines.hopper.kernels.tile import FIELDS, LOG2_E, get, heard_bits, kept_factor, put, score_of

# The numbers that the producer leaves about a tile of queries; those of the last four stay.
VISIT = gl.constexpr(4)


@gluon.jit
def produce_queries(
    descriptors, sizes, mask, lists, counter, memory, visits, buffers, barriers,
    PARTS: gl.constexpr, STAGES: gl.constexpr, KEYS: gl.constexpr, VALUES: gl.constexpr, RANGES: gl.constexpr,
):  # fmt: skip
    """Loads the keys and values of a tile, and then the queries that hear one of them, PARTS x 64 at a time.

    There is memory for the keys of KEYS tiles and the values of VALUES tiles: with 2, those of the next tile are loaded
    while this one is computed.
    """
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, edge_desc = descriptors
    n_tiles, n_work, group, key_heads, group_size, edge_lines = sizes
    by_item, by_head = mask
    entries, counts, list_length = lists
    q_mem, do_mem, k_mem, v_mem, lse_mem, delta_mem, edge_mem = buffers
    kv_full, k_empty, v_empty, q_full, q_empty, do_full, told, heard = barriers
    QUERY_BYTES: gl.constexpr = PARTS * (q_desc.block_type.nbytes + lse_desc.block_type.nbytes)
    EDGE_BYTES: gl.constexpr = PARTS * 2 * edge_desc.block_type.nbytes
    done = 0
    turn = 0
    programs = gl.num_programs(0)
    work = gl.program_id(0)
    while work < n_work:
        place = work % (group * n_tiles)
        tile = place // group
        whole = work // (group * n_tiles) * group + place % group
        item = whole // key_heads
        key_head = whole % key_heads
        first_head = key_head * group_size
        total = 0
        for each in range(group_size):
            total += gl.load(counts + (item * by_item + (first_head + each) * by_head) * n_tiles + tile)
        slot = turn & 1
        mbarrier.wait(heard.index(slot), ((turn >> 1) & 1) ^ 1)
        put(memory, slot * FIELDS, total)
        put(memory, slot * FIELDS + 1, tile)
        put(memory, slot * FIELDS + 2, item)
        put(memory, slot * FIELDS + 3, key_head)
        mbarrier.arrive(told.index(slot), count=1)
        held = turn % KEYS
        held_values = turn % VALUES
        mbarrier.wait(k_empty.index(held), ((turn // KEYS) & 1) ^ 1)
        mbarrier.expect(kv_full.index(held), 2 * k_desc.block_type.nbytes + 2 * v_desc.block_type.nbytes)
        for half in gl.static_range(2):
            at = [item, key_head, tile * 128 + half * 64, 0]
            load_tile(k_desc, at, kv_full.index(held), k_mem.index(held * 2 + half))
        mbarrier.wait(v_empty.index(held_values), ((turn // VALUES) & 1) ^ 1)
        for half in gl.static_range(2):
            at = [item, key_head, tile * 128 + half * 64, 0]
            load_tile(v_desc, at, kv_full.index(held), v_mem.index(held_values * 2 + half))
        upcoming = gl.atomic_add(counter, 1) + programs
        for each in range(group_size):
            head = first_head + each
            mask_head = item * by_item + head * by_head
            own = mask_head * n_tiles + tile
            count = gl.load(counts + own)
            of_head = entries + own * list_length
            entry = gl.load(of_head)
            line = item * (key_heads * group_size) + head
            for step in range(count):
                first = (entry >> 2) * (64 * PARTS)
                stage = done % STAGES
                phase = (done // STAGES) & 1
                mbarrier.wait(q_empty.index(stage), phase ^ 1)
                visit = (done & 3) * VISIT
                put(visits, visit, first)
                put(visits, visit + 1, head)
                put(visits, visit + 2, entry & 3)
                mbarrier.arrive(q_full.index(stage), count=1)
                if RANGES > 0:
                    if (entry & 1) != 0:
                        mbarrier.expect(q_full.index(stage), QUERY_BYTES + EDGE_BYTES)
                        edge_line = mask_head * RANGES + ((entry >> 1) & 1)
                        for part in gl.static_range(PARTS):
                            to = (stage * PARTS + part) * 2
                            row = first + part * 64
                            load_tile(edge_desc, [edge_line, row], q_full.index(stage), edge_mem.index(to))
                            load_tile(
                                edge_desc, [edge_lines + edge_line, row], q_full.index(stage), edge_mem.index(to + 1)
                            )
                    else:
                        mbarrier.expect(q_full.index(stage), QUERY_BYTES)
                else:
                    mbarrier.expect(q_full.index(stage), QUERY_BYTES)
                for part in gl.static_range(PARTS):
                    to = stage * PARTS + part
                    row = first + part * 64
                    load_tile(q_desc, [item, head, row, 0], q_full.index(stage), q_mem.index(to))
                    load_tile(lse_desc, [line, row], q_full.index(stage), lse_mem.index(to))
                mbarrier.expect(
                    do_full.index(stage), PARTS * (do_desc.block_type.nbytes + delta_desc.block_type.nbytes)
                )
                for part in gl.static_range(PARTS):
                    to = stage * PARTS + part
                    row = first + part * 64
                    load_tile(delta_desc, [line, row], do_full.index(stage), delta_mem.index(to))
                    load_tile(do_desc, [item, head, row, 0], do_full.index(stage), do_mem.index(to))
                # A list has one entry more than it can use.
                entry = gl.load(of_head + step + 1)
                done += 1
        work = upcoming
        turn += 1
    slot = turn & 1
    mbarrier.wait(heard.index(slot), ((turn >> 1) & 1) ^ 1)
    put(memory, slot * FIELDS, -1)
    mbarrier.arrive(told.index(slot), count=1)
    # Every work item asks once: this program was the last of all to ask.
    if work == n_work + programs - 1:
        gl.atomic_xchg(counter, 0)


@gluon.jit
def _weighed(
    product, lse_mem, edge_mem, visits, visit, stage, key, bits, mask, terms, numbers, seeds, item,
    S: gl.constexpr, RANGES: gl.constexpr, PLAIN: gl.constexpr, SOFTCAP: gl.constexpr,
    ALIBI: gl.constexpr, BIAS: gl.constexpr, DROPOUT: gl.constexpr,
):  # fmt: skip
    """The weights [keys, queries] of a tile, the tanh of its scores, the dropout's factors, whether it is masked."""
    ACROSS: gl.constexpr = gl.SliceLayout(0, S)
    by_item, by_head = mask
    slopes, bias = terms
    q_len, k_len, q_start, scale, cap, heads, words, bias_item, bias_head, bias_query, bias_key = numbers
    seed_low, seed_high, limit, kept = seeds
    first = get(visits, visit)
    head = get(visits, visit + 1)
    kind = get(visits, visit + 2)
    lse = gl.expand_dims(lse_mem.index(stage).load(ACROSS), 0)
    rows = first + gl.arange(0, 64, layout=ACROSS)
    query = gl.expand_dims(rows, 0)
    bend = product
    if PLAIN:
        weights = gl.exp2(product * scale - lse)
    else:
        slope = scale
        if ALIBI:
            slope = gl.load(slopes + head) * LOG2_E
        own_bias = bias
        if BIAS:
            own_bias = bias + item.to(gl.int64) * bias_item + head.to(gl.int64) * bias_head
        score_numbers = (q_len, k_len, q_start, scale, cap, slope, bias_query, bias_key)
        score, bend = score_of(product, query, key, score_numbers, own_bias, SOFTCAP, ALIBI, BIAS)
        weights = gl.exp2(score - lse)
    if (kind & 1) != 0:
        if RANGES == 0:
            mask_head = item * by_item + head * by_head
            keep = heard_bits(bits, mask_head * q_len * words, words, query, key, q_len, k_len)
        else:
            start = gl.expand_dims(edge_mem.index(stage * 2).load(ACROSS), 0)
            end = gl.expand_dims(edge_mem.index(stage * 2 + 1).load(ACROSS), 0)
            keep = (key >= start) & (key < end)
        weights = gl.where(keep, weights, 0.0)
    factor = weights
    if DROPOUT:
        row = (item * heads + head) * q_len + query
        factor = kept_factor(row, key, seed_low, seed_high, limit, kept)
    return weights, bend, factor, (kind & 1) != 0


@gluon.jit
def _consume(
    dk_desc, dv_desc, bits, mask, terms, numbers, seeds, gradient_scale, memory, visits, buffers, barriers,
    KEY_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, STAGES: gl.constexpr, TILES: gl.constexpr, RANGES: gl.constexpr,
    PLAIN: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr, DROPOUT: gl.constexpr,
    DK: gl.constexpr, DV: gl.constexpr, AHEAD: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = dk_desc.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    KL: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEY_DIM, 16])
    VL: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, VALUE_DIM, 16])
    FOR_K: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=KL, k_width=2)
    FOR_V: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=VL, k_width=2)
    q_mem, do_mem, k_mem, v_mem, lse_mem, delta_mem, edge_mem = buffers
    kv_full, k_empty, v_empty, q_full, q_empty, do_full, told, heard = barriers
    zeros = gl.zeros([64, 64], gl.float32, S)
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
        dk = gl.zeros([64, KEY_DIM], gl.float32, KL)
        dv = gl.zeros([64, VALUE_DIM], gl.float32, VL)
        held = turn % TILES
        keys = k_mem.index(held * 2 + ME)
        values = v_mem.index(held * 2 + ME)
        mbarrier.wait(kv_full.index(held), (turn // TILES) & 1)
        score = zeros
        if AHEAD:
            mbarrier.wait(q_full.index(done % STAGES), (done // STAGES) & 1, pred=total > 0)
            score = warpgroup_mma(keys, q_mem.index(done % STAGES).permute((1, 0)), zeros, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
        for step in range(total):
            stage = done % STAGES
            if not AHEAD:
                mbarrier.wait(q_full.index(stage), (done // STAGES) & 1)
                score = warpgroup_mma(keys, q_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(do_full.index(stage), (done // STAGES) & 1)
            if DK:
                dp = warpgroup_mma(values, do_mem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
                if not AHEAD:
                    score = warpgroup_mma_wait(1, deps=[score])
            elif not AHEAD:
                score = warpgroup_mma_wait(0, deps=[score])
            weights, bend, factor, masked = _weighed(
                score, lse_mem, edge_mem, visits, (done & 3) * VISIT, stage, key, bits, mask, terms, numbers, seeds,
                item, S, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS, DROPOUT,
            )  # fmt: skip
            if DROPOUT:
                kept_weights = (weights * factor).to(dtype)
            else:
                kept_weights = weights.to(dtype)
            if DK:
                # Complete already: a boundary for the assembler, which would wait for the product before the weights.
                mbarrier.wait(do_full.index(stage), (done // STAGES) & 1)
                dp = warpgroup_mma_wait(0, deps=[dp])
            if DV:
                dv = warpgroup_mma(gl.convert_layout(kept_weights, FOR_V), do_mem.index(stage), dv, is_async=True)
            if DK:
                if DROPOUT:
                    dp = dp * factor
                ds = weights * (dp - gl.expand_dims(delta_mem.index(stage).load(gl.SliceLayout(0, S)), 0))
                if SOFTCAP:
                    ds = ds * (1.0 - bend * bend)
                if masked:
                    # The product of what is not heard may be inf, and 0 x inf is NaN.
                    ds = gl.where(weights > 0.0, ds, 0.0)
                ds = ds.to(dtype)
                dk = warpgroup_mma(gl.convert_layout(ds, FOR_K), q_mem.index(stage), dk, is_async=True)
            done += 1
            if AHEAD:
                more = step + 1 < total
                mbarrier.wait(q_full.index(done % STAGES), (done // STAGES) & 1, pred=more)
                score = warpgroup_mma(
                    keys, q_mem.index(done % STAGES).permute((1, 0)), zeros, use_acc=False, is_async=True
                )
                dk, dv, score = warpgroup_mma_wait(0, deps=[dk, dv, score])
            else:
                dk, dv = warpgroup_mma_wait(0, deps=[dk, dv])
            mbarrier.arrive(q_empty.index(stage), count=1)
        # Each warpgroup alone reads its half of the keys and values, and writes the gradients in their place.
        first = tile * 128 + ME * 64
        if DV:
            values.store(dv.to(dtype))
        if DK:
            keys.store((dk * gradient_scale).to(dtype))
        fence_async_shared()
        if DV:
            store_tile(dv_desc, [item, key_head, first, 0], values)
        if DK:
            store_tile(dk_desc, [item, key_head, first, 0], keys)
        wait_for_stores(0)
        mbarrier.arrive(k_empty.index(held), count=1)
        mbarrier.arrive(v_empty.index(held), count=1)
        turn += 1
        mbarrier.wait(told.index(turn & 1), (turn >> 1) & 1)
        total = get(memory, (turn & 1) * FIELDS)


@gluon.jit(
    do_not_specialize=[
        "q_len", "k_len", "q_start", "heads", "group_size", "n_tiles", "n_work", "group", "by_item", "by_head",
        "list_length", "words", "edge_lines", "scale", "cap", "gradient_scale", "bias_item", "bias_head", "bias_query",
        "bias_key", "seed_low", "seed_high", "limit", "kept",
    ],
    do_not_specialize_on_alignment=["entries", "counts", "bits", "counter", "slopes", "bias"],
)  # fmt: skip
def key_gradients(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, edge_desc, dk_desc, dv_desc, entries, counts, bits, counter,
    slopes, bias, q_len, k_len, q_start, heads, group_size, n_tiles, n_work, group, by_item, by_head, list_length,
    words, edge_lines, scale, cap, gradient_scale, bias_item, bias_head, bias_query, bias_key, seed_low, seed_high,
    limit, kept,
    KEY_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, STAGES: gl.constexpr, TILES: gl.constexpr, RANGES: gl.constexpr,
    PLAIN: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr, DROPOUT: gl.constexpr,
    DK: gl.constexpr, DV: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    LINE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    NUMBERS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_mem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 64, KEY_DIM], TILE)
    do_mem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 64, VALUE_DIM], TILE)
    k_mem = gl.allocate_shared_memory(k_desc.dtype, [2 * TILES, 64, KEY_DIM], TILE)
    v_mem = gl.allocate_shared_memory(k_desc.dtype, [2 * TILES, 64, VALUE_DIM], TILE)
    lse_mem = gl.allocate_shared_memory(gl.float32, [STAGES, 64], LINE)
    delta_mem = gl.allocate_shared_memory(gl.float32, [STAGES, 64], LINE)
    edge_mem = gl.allocate_shared_memory(gl.int32, [2 * STAGES, 64], LINE)
    memory = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], NUMBERS)
    visits = gl.allocate_shared_memory(gl.int32, [4 * VISIT, 1], NUMBERS)
    kv_full = gl.allocate_shared_memory(gl.int64, [TILES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [TILES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [TILES, 1], BARRIER)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    told = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    heard = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(TILES):
        mbarrier.init(kv_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_empty.index(i), count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=2)
        mbarrier.init(q_empty.index(i), count=2)
        mbarrier.init(do_full.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(told.index(i), count=1)
        mbarrier.init(heard.index(i), count=2)
    descriptors = (q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, edge_desc)
    sizes = (n_tiles, n_work, group, heads // group_size, group_size, edge_lines)
    mask = (by_item, by_head)
    lists = (entries, counts, list_length)
    buffers = (q_mem, do_mem, k_mem, v_mem, lse_mem, delta_mem, edge_mem)
    barriers = (kv_full, k_empty, v_empty, q_full, q_empty, do_full, told, heard)
    terms = (slopes, bias)
    numbers = (q_len, k_len, q_start, scale, cap, heads, words, bias_item, bias_head, bias_query, bias_key)
    seeds = (seed_low, seed_high, limit, kept)
    # Functions and their arguments must be written out inside the call.
    gl.warp_specialize([
        (produce_queries, (
            descriptors, sizes, mask, lists, counter, memory, visits, buffers, barriers, 1, STAGES, TILES, TILES,
            RANGES,
        )),
        (_consume, (
            dk_desc, dv_desc, bits, mask, terms, numbers, seeds, gradient_scale, memory, visits, buffers,
            barriers, KEY_DIM, VALUE_DIM, STAGES, TILES, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS, DROPOUT, DK, DV,
            AHEAD, 0,
        )),
        (_consume, (
            dk_desc, dv_desc, bits, mask, terms, numbers, seeds, gradient_scale, memory, visits, buffers,
            barriers, KEY_DIM, VALUE_DIM, STAGES, TILES, RANGES, PLAIN, SOFTCAP, ALIBI, BIAS, DROPOUT, DK, DV,
            AHEAD, 1,
        )),
    ], [4, 4], [240, 240])  # fmt: skip
