"""The suite of layouts: its rows come from layouts, and its verdicts from its rows."""

from bench.suites.parallel import LENGTH, RANKS, Placed, Wall, masks, placed, placements_table, verdicts_on, walls_table
from rearview.parallel import shard


def test_rows_and_verdicts():
    name = next(name for name in masks() if name.startswith("window"))
    ours, head_tail, by_time = placed(name)
    layout = shard(masks()[name], LENGTH, RANKS)
    assert (ours.balance, ours.received) == (layout.balance, sum(layout.keys_received) / RANKS / LENGTH)
    assert head_tail.received == by_time.received == 7 / 8
    assert verdicts_on([ours, head_tail]) == ["met: window 4096, 16.0 times fewer keys than all-gather, asked 15"]
    packed = Placed("9 documents, up to 8,192", "rearview (area)", 1.06, 0.1)
    (verdict,) = verdicts_on([packed])
    assert verdict.startswith("NOT MET: 9 documents, up to 8,192, balance 1.060 with 8.8 times fewer")
    assert placements_table([packed]).rows == [
        (*("9 documents, up to 8,192", "rearview (area)"), "1.060", "0.1000", "8.8x", "")
    ]


def test_processes_are_compared_with_one():
    table = walls_table([Wall("causal", 1, 10.0, 1e-7), Wall("causal", 2, 5.0, 1e-7)])
    assert [row[3] for row in table.rows] == ["1.00x", "2.00x"]
