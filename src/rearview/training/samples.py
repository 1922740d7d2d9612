"""Samples during training: a continuation of a prompt, or a text whose hidden parts are filled in.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> from rearview.training import NextToken, TextData
>>> data = TextData.of(["to be or not to be " * 9], ByteTokenizer())
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=1, width=4))
>>> sample(model, NextToken(), data, prompt="to", most_tokens=5)[:2]
'to'
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.generation import generate
from rearview.models import GPT, T5
from rearview.text import Tokenizer
from rearview.training.batches import Rows
from rearview.training.data import TextData
from rearview.training.objectives import HiddenSpans, MaskedTokens, Objective
from rearview.training.randomness import generator_of


@torch.no_grad()
def sample(
    model: nn.Module,
    objective: Objective,
    data: TextData,
    *,
    prompt: str = "",
    most_tokens: int = 200,
    seed: int = 0,
    shown: int = 64,
) -> str:
    """A sample of the model, in evaluation mode.

    A GPT continues `prompt`, for at most `most_tokens`. A BERT or T5 fills in hidden parts of the first `shown` tokens
    of the held-out text; what it fills in is shown in brackets.
    """
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        if isinstance(objective, MaskedTokens):
            return _filled_in(model, objective, data, _held_out(data, shown).to(device), seed)
        if isinstance(objective, HiddenSpans):
            return _answered(model, objective, data, _held_out(data, shown).to(device), seed)
        return _continued(model, data.tokenizer, prompt, most_tokens, seed)
    finally:
        model.train(was_training)


def _continued(model: nn.Module, tokenizer: Tokenizer, prompt: str, most_tokens: int, seed: int) -> str:
    start = tokenizer.encode(prompt)
    if not start:
        # The end of one document starts the next.
        start = [tokenizer.end_id or 0]
    stop = () if tokenizer.end_id is None else (tokenizer.end_id,)
    generator = _generator(model)
    written = generate(generator, start, max_new_tokens=most_tokens, temperature=0.8, stop_ids=stop, seed=seed).finish()
    return prompt + tokenizer.decode(written.tokens[0])


def _filled_in(model: nn.Module, objective: MaskedTokens, data: TextData, tokens: Tensor, seed: int) -> str:
    seen, chosen = objective.hide(tokens, generator_of(seed, "sample"))
    guesses = model(seen).argmax(dim=-1)
    pieces: list[str] = []
    at = 0
    row, marks = tokens[0].tolist(), chosen[0].tolist()
    for place, marked in enumerate(marks):
        if marked:
            pieces += [data.tokenizer.decode(row[at:place]), f"[{data.tokenizer.decode([int(guesses[0, place])])}]"]
            at = place + 1
    return "".join([*pieces, data.tokenizer.decode(row[at:])])


def _answered(model: nn.Module, objective: HiddenSpans, data: TextData, tokens: Tensor, seed: int) -> str:
    asked, truth = objective.cut(tokens[0].tolist(), generator_of(seed, "sample"))
    # The model may answer more than was asked, without an end token.
    answer = generate(_generator(model), asked, max_new_tokens=2 * len(truth), temperature=0).finish()
    spans = _by_sentinel(answer.tokens[0], objective.sentinels)
    pieces: list[str] = []
    at = 0
    for place, token in enumerate(asked):
        if token in objective.sentinels:
            guess = data.tokenizer.decode(spans.get(token, []))
            pieces += [data.tokenizer.decode(asked[at:place]), f"[{guess}]"]
            at = place + 1
    return "".join([*pieces, data.tokenizer.decode(asked[at:])])


def _generator(model: nn.Module) -> GPT | T5:
    if not isinstance(model, (GPT, T5)):
        got = type(model).__name__
        raise BadArgument("model", expected="a GPT or T5 to sample from", got=got, advice="Set sample_every=0.")
    return model


def _by_sentinel(answer: list[int], sentinels: tuple[int, ...]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    current: list[int] = []
    for token in answer:
        if token in sentinels:
            current = found.setdefault(token, [])
        else:
            current.append(token)
    return found


def _held_out(data: TextData, length: int) -> Tensor:
    rows = Rows(data.validation, min(length, len(data.validation) - 1))
    return rows.at(torch.zeros(1, dtype=torch.int64)).tokens
