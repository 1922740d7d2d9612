"""The stages of attention in order: for each its symbol, formula, exact matrix, and one sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.explain.trace import Stage
from rearview.masks import Mask


def input_stages(
    x: Tensor, positions: Tensor | None, labels: tuple[str, ...], features: tuple[str, ...]
) -> list[Stage]:
    """X, and with positions P and X' = X + P."""
    stages = [Stage("x", "X", "X", "X", "What each position brings.", x.unsqueeze(0), labels, features)]
    if positions is None:
        return stages
    together = x + positions
    return [
        *stages,
        Stage("p", "P", "P", "P", "Where each position stands, as numbers.", positions.unsqueeze(0), labels, features),
        Stage(
            "x_positioned",
            "X'",
            "X' = X + P",
            "X' = X + P",
            "The input that knows its place.",
            together.unsqueeze(0),
            labels,
            features,
        ),
    ]


def attention_stages(
    *,
    heads: tuple[Tensor, Tensor, Tensor],
    turned: tuple[Tensor, Tensor] | None,
    scores: Tensor,
    visible: Tensor,
    weights: Tensor,
    unmasked: Tensor,
    output: Tensor,
    labels: tuple[str, ...],
    key_labels: tuple[str, ...],
    columns: tuple[tuple[str, ...], ...],
    mask: Mask,
    source: str | None,
    biased: bool,
    score_biased: bool,
    default_scale: bool,
    scale: float,
    w_o: Tensor | None,
    b_o: Tensor | None,
) -> list[Stage]:
    """From Q, K and V to the output; `source` is the input that they were projected from, where there is one."""
    query, key, value = heads
    query_names, key_names, value_names = columns

    def of(letter: str) -> tuple[str, str]:
        formula = f"{letter} = {source} W_{letter}{f' + b_{letter}' if biased else ''}" if source else letter
        return formula, formula

    stages = [
        Stage("q", "Q", *of("Q"), "What each position would like to hear.", query, labels, query_names),
        Stage("k", "K", *of("K"), "What each position has to offer.", key, key_labels, key_names),
        Stage("v", "V", *of("V"), "What each position has to say.", value, key_labels, value_names),
    ]
    q, k = "Q", "K"
    if turned is not None:
        q, k = "Q'", "K'"
        said = "turned by its position, so that a score depends on the distance."
        stages += [
            Stage("q_turned", "Q'", "Q' = R Q", "Q' = RQ", f"Each query, {said}", turned[0], labels, query_names),
            Stage("k_turned", "K'", "K' = R K", "K' = RK", f"Each key, {said}", turned[1], key_labels, key_names),
        ]
    per = "/ √d" if default_scale else f"× {scale:g}"
    per_latex = r"/ \sqrt{d}" if default_scale else rf"\times {scale:g}"
    additive = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    if score_biased:
        per, per_latex = f"{per} + B", f"{per_latex} + B"
    open_output = unmasked @ value
    stages += [
        Stage(
            "scores",
            "S",
            f"S = {q} {k}ᵀ {per}",
            rf"S = {q}{k}^\top {per_latex}",
            "How well each query and key fit; every pair is scored, the forbidden ones too.",
            scores,
            labels,
            key_labels,
        ),
        Stage(
            "mask",
            "M",
            f"M = {mask!r}",
            r"M_{ij} = 0 \text{ if } i \text{ may hear } j, \; -\infty \text{ otherwise}",
            "0 where a key may be heard, -∞ where it may not.",
            additive,
            labels,
            key_labels,
            torch.zeros_like(additive),
        ),
        Stage(
            "masked",
            "S + M",
            "S + M",
            "S + M",
            "Allowed scores stay as they are; forbidden ones become -∞.",
            scores.masked_fill(~visible, -torch.inf),
            labels,
            key_labels,
            scores,
        ),
        Stage(
            "weights",
            "A",
            "A = softmax(S + M)",
            r"A = \operatorname{softmax}(S + M)",
            "How much each query hears of each key: rows sum to 1, forbidden cells are exactly 0.",
            weights,
            labels,
            key_labels,
            unmasked,
        ),
        Stage(
            "output",
            "O",
            "O = A V",
            "O = AV",
            "What each position hears: a blend of the values that it may hear, and of no others.",
            output,
            labels,
            value_names,
            open_output,
        ),
    ]
    if w_o is not None:
        names = tuple(f"y{n}" for n in range(1, w_o.shape[-1] + 1))
        project, plus = _projection(w_o, b_o), "" if b_o is None else " + b_O"
        stages.append(
            Stage(
                "projected",
                "Y",
                ("Y = [O₁ … Oₕ] W_O" if query.shape[0] > 1 else "Y = O W_O") + plus,
                (r"Y = [O_1 \ldots O_h] W_O" if query.shape[0] > 1 else "Y = O W_O") + plus,
                "The heads side by side, projected: what the layer returns.",
                project(output),
                labels,
                names,
                project(open_output),
            )
        )
    return stages


def _projection(w_o: Tensor, b_o: Tensor | None):
    def project(output: Tensor) -> Tensor:
        # [heads, time, dim] -> [1, time, heads x dim]
        together = output.movedim(0, 1).flatten(1) @ w_o
        return (together if b_o is None else together + b_o).unsqueeze(0)

    return project
