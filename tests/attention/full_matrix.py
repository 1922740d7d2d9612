"""The definition that tests compare `statistics` with: every number from the full matrix of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from rearview import Mask
from rearview.attention import Statistics
from rearview.attention.bias import Alibi
from rearview.masks import Frame


class FullMatrix:
    """Softmax weights [B, H, Q, K] in float64, and what follows from them."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: Mask,
        *,
        q_start: int | None = None,
        bias: Tensor | Alibi | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ):
        q, k = query.double(), key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
        self.frame = frame = Frame.of(q.shape[2], k.shape[2], q_start)
        self.query = torch.arange(frame.q_start, frame.q_end)
        self.key = torch.arange(frame.k_len)
        self.visible = mask.visible_in(frame, q.device).expand(*q.shape[:3], frame.k_len)
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if isinstance(bias, Alibi):
            scores = scores + bias.tile(self.query, self.key).double()
        elif bias is not None:
            scores = scores + bias.double()
        scores = torch.where(self.visible, scores, -torch.inf)
        every = scores
        if sinks is not None:
            sink = sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            every = torch.cat([scores, sink], -1)
        self.lse = every.logsumexp(-1)
        weights = (scores - self.lse.unsqueeze(-1)).exp()
        self.weights = torch.where(scores == -torch.inf, 0, weights)
        self.heard = (scores > -torch.inf).any(-1)

    def check(self, seen: Statistics, *, within: float) -> None:
        def same(name: str, found: Tensor, wanted: Tensor, scale: float = 1.0) -> None:
            torch.testing.assert_close(
                found.double(),
                wanted.double().expand_as(found),
                atol=within * scale,
                rtol=within,
                msg=lambda text: f"{name}: {text}",
            )

        w, frame = self.weights, self.frame
        assert seen.frame == frame
        same("lse", seen.lse, self.lse)
        same("entropy", seen.entropy, torch.special.entr(w).sum(-1))
        same("received", seen.received, w.sum(2))
        counts = self.visible.sum(-1, keepdim=True).clamp(min=1)
        even = (self.visible / counts.double()).double()
        full = seen.received.shape
        same("expected", seen.expected.expand(full), even.sum(2))
        for index, count in enumerate((1, 4, 8)):
            same(f"first {count}", seen.first[..., index], w[..., :count].sum(-1))
        back = self.query.unsqueeze(-1) - self.key
        same("distance", seen.distance, (w * back).sum(-1), scale=max(1.0, float(frame.k_len)))
        edges = seen.histogram_edges
        assert edges[0] == 0
        assert edges[-1] >= frame.q_end
        assert len(edges) == seen.histogram.shape[-1]
        for index, (low, high) in enumerate(zip((-(2**40), *edges), edges, strict=False)):
            same(f"histogram {index}", seen.histogram[..., index], (w * ((back >= low) & (back < high))).sum((-1, -2)))
        self.check_links(seen, within)
        if seen.map is not None:
            self.check_map(seen, same, even)

    def check_map(self, seen: Statistics, same, even: Tensor) -> None:
        assert seen.map is not None
        assert seen.rows_heard is not None
        assert seen.expected_map is not None
        assert seen.map_size is not None
        assert max(seen.map.shape[-2:]) <= seen.map_size
        # One row per bin, 1 where a position is in it.
        query_bin = (self.query - min(0, self.frame.q_start)) // seen.bin_width
        key_bin = self.key // seen.bin_width
        rows = torch.nn.functional.one_hot(query_bin).double().T
        cols = torch.nn.functional.one_hot(key_bin).double().T
        assert seen.map.shape[-2:] == (len(rows), len(cols))
        same("map", seen.map, rows @ self.weights @ cols.T)
        same("expected map", seen.expected_map.expand_as(seen.map), rows @ even @ cols.T)
        same("rows heard", seen.rows_heard, self.heard.double() @ rows.T)

    def check_links(self, seen: Statistics, within: float) -> None:
        links, flat = seen.links, self.weights.flatten(2)
        count = links.weight.shape[-1]
        assert count == min(seen.links_kept, flat.shape[-1])
        torch.testing.assert_close(links.weight.double(), flat.topk(count).values, atol=within, rtol=within)
        there = links.weight > 0
        assert bool((links.query[~there] == -1).all())
        assert bool((links.key[~there] == -1).all())
        place = (links.query - self.frame.q_start).clamp(min=0) * self.frame.k_len + links.key.clamp(min=0)
        torch.testing.assert_close(
            links.weight.double()[there], flat.gather(-1, place)[there], atol=within, rtol=within
        )
        for pairs in torch.stack([links.query, links.key], -1)[there.all(-1)].flatten(0, -3):
            assert len({tuple(pair) for pair in pairs.tolist()}) == count, "a link twice"
