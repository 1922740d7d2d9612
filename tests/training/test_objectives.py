"""The objectives of GPT, BERT and T5, and that each is learned."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rearview import full
from rearview.errors import BadArgument
from rearview.text import ByteTokenizer, CharTokenizer
from rearview.training import (
    HiddenSpans,
    MaskedTokens,
    NextToken,
    Sample,
    TextData,
    TrainConfig,
    TrainingStep,
    Validation,
    objective_of,
    specials_for,
    train,
)
from rearview.training.batches import Batch, Rows
from rearview.training.corpus import Corpus
from rearview.training.factory import new_model, new_tokenizer


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_next_token_is_plain_cross_entropy():
    tokenizer = ByteTokenizer()
    model = new_model("gpt", tokenizer, context=8, layers=1, heads=2, width=8)
    rows = Rows(Corpus.of(["to be or not to be"], tokenizer), 8)
    batch = rows.at(torch.tensor([0, 5]))
    wanted = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten())
    assert torch.equal(NextToken().loss(model, batch), wanted)


def test_a_loss_is_float32_whatever_the_logits_are():
    tokenizer = ByteTokenizer()
    model = new_model("gpt", tokenizer, context=8, layers=1, heads=2, width=8)
    batch = Rows(Corpus.of(["to be or not to be"], tokenizer), 8).at(torch.tensor([0]))
    with torch.autocast("cpu", torch.bfloat16):
        assert NextToken().loss(model, batch).dtype == torch.float32


def test_hidden_tokens_are_chosen_in_the_shares_of_bert():
    objective = MaskedTokens(mask_id=99, vocab_size=100, special_ids=(0, 98, 99))
    tokens = torch.full((200, 500), 7)
    tokens[:, 0] = 98
    seen, chosen = objective.hide(tokens, generator())
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.005)
    # Special tokens are neither targets nor replacements.
    assert not chosen[:, 0].any()
    assert bool((seen[~chosen] == tokens[~chosen]).all())
    asked = seen[chosen]
    assert (asked == 99).float().mean().item() == pytest.approx(0.8, abs=0.01)
    replaced = asked[(asked != 99) & (asked != 7)]
    assert len(replaced) / len(asked) == pytest.approx(0.1, abs=0.01)
    assert set(replaced.tolist()) == set(range(1, 98)) - {7}


def test_a_tiny_batch_has_a_target():
    objective = MaskedTokens(mask_id=9, vocab_size=10, special_ids=(9,))
    for seed in range(20):
        assert objective.hide(torch.tensor([[1, 2]]), generator(seed))[1].any()


@given(st.integers(1, 120), st.integers(0, 99))
def test_spans_put_back_give_the_text(length: int, seed: int):
    sentinels = tuple(range(1000, 1006))
    objective = HiddenSpans(sentinels=sentinels, start_id=2000, end_id=2001)
    text = list(range(length))
    asked, answer = objective.cut(text, generator(seed))
    assert asked[-1] == answer[-1] == 2001
    spans: dict[int, list[int]] = {}
    for token in answer[:-1]:
        if token >= 1000:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert list(spans) == list(sentinels[: len(spans)])
    together = [t for token in asked[:-1] for t in spans.get(token, [token])]
    assert together == text
    hidden = sum(map(len, spans.values()))
    assert hidden == max(1, round(0.15 * length))


def test_spans_are_padded_and_the_padding_is_not_heard():
    tokenizer = ByteTokenizer(specials_for("t5", 32))
    model = new_model("t5", tokenizer, context=32, layers=1, heads=2, width=8).eval()
    objective = objective_of(model, tokenizer)
    assert isinstance(objective, HiddenSpans)
    # Two documents in one row: spans are hidden in the longer one only.
    corpus = Corpus.of(["abcd", "efghijklmnopqrstuvwxyz" * 3], tokenizer)
    batch = Rows(corpus, 32).at(torch.tensor([0, 30]))
    spans = objective.prepare(batch, generator())
    asked, decoder, targets = spans.asked, spans.decoder, spans.targets
    assert decoder.shape == targets.shape
    assert decoder[:, 0].tolist() == [tokenizer.pad_id] * 2
    assert not set(asked[0].tolist()) & set(b"abcd")
    lengths = (asked != tokenizer.pad_id).sum(dim=1)
    assert lengths[0] < lengths[1]
    with torch.no_grad():
        both = spans.logits(model)
        alone = model(asked[:1, : lengths[0]], decoder[:1])
    torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=1e-4)
    wanted = F.cross_entropy(both.flatten(0, 1), targets.flatten(), ignore_index=-100)
    assert objective.loss(model, batch, generator()).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_objectives_draw_from_their_generator_only():
    tokenizer = ByteTokenizer(specials_for("t5", 32))
    corpus = Corpus.of(["efghijklmnopqrstuvwxyz" * 3], tokenizer)
    batch = Rows(corpus, 32).at(torch.tensor([0, 30]))
    objective = HiddenSpans(sentinels=tokenizer.sentinel_ids, start_id=0, end_id=256)
    one, other, same = (objective.prepare(batch, generator(seed)).asked for seed in (1, 2, 1))
    assert torch.equal(one, same)
    assert one.shape != other.shape or not torch.equal(one, other)


def test_which_objective_belongs_to_which_model():
    plain = ByteTokenizer()
    with pytest.raises(
        BadArgument,
        match=r"tokenizer: expected a tokenizer with the token <mask>, which a BERT needs, got one without it",
    ):
        objective_of(new_model("bert", plain, layers=1, heads=1, width=4), plain)
    with pytest.raises(BadArgument, match=r'<extra_id_0>.*specials_for\("t5", context\)'):
        objective_of(new_model("t5", plain, layers=1, heads=1, width=4), plain)
    with pytest.raises(
        BadArgument, match="model: expected a GPT, BERT or T5, or any module with an objective=, got Linear"
    ):
        objective_of(nn.Linear(1, 1), plain)


ALPHABET = "abcdefghij"
# A text whose hidden parts follow from the rest.
RUNS = "".join(letter * 40 for letter in ALPHABET * 6)


@pytest.mark.parametrize(("kind", "below"), [("gpt", 0.5), ("bert", 0.5), ("t5", 0.8)])
def test_a_small_model_learns(kind: str, below: float):
    tokenizer = new_tokenizer("chars", [RUNS], kind=kind, context=20)
    data = TextData.of([RUNS], tokenizer)
    model = new_model(kind, tokenizer, context=20, layers=1, heads=2, width=32)
    config = TrainConfig(
        steps=150, context=20, batch=16, lr=5e-3, warmup=10, eval_every=0, sample_every=150, weight_decay=0.0
    )
    events = list(train(model, data, config))
    losses = [event.loss for event in events if isinstance(event, TrainingStep)]
    (validation,) = (event for event in events if isinstance(event, Validation))
    (sample,) = (event for event in events if isinstance(event, Sample))
    assert losses[0] > 1.8
    assert sum(losses[-10:]) / 10 < below
    assert validation.loss < below
    if kind == "gpt":
        # It keeps the beginning of the prompt.
        assert any(letter * 10 in sample.text for letter in ALPHABET)
    else:
        # What was hidden stands in brackets, and is what stands around it.
        assert "[" in sample.text
        guesses = [(sample.text[at - 1], sample.text[at + 1]) for at, c in enumerate(sample.text) if c == "[" and at]
        assert sum(before == guess for before, guess in guesses) > len(guesses) / 2


def test_options_of_a_gpt_are_refused_elsewhere():
    tokenizer = CharTokenizer("ab", specials_for("bert", 8))
    with pytest.raises(
        BadArgument, match="kv_heads: expected none: only a GPT has this setting, got kv_heads for a bert"
    ):
        new_model("bert", tokenizer, kv_heads=1)
    with pytest.raises(BadArgument, match="positions: expected none: only a GPT has this setting"):
        new_model("bert", tokenizer, positions="rotary")
    with pytest.raises(BadArgument, match="mask: expected none: only a GPT has this setting"):
        new_model("t5", tokenizer, mask=full())
    with pytest.raises(BadArgument, match="model: expected gpt, bert or t5, got 'rnn'"):
        new_model("rnn", tokenizer)
    with pytest.raises(BadArgument, match="tokenizer: expected bytes, chars or bpe, got 'words'"):
        new_tokenizer("words", ["a"])
    with pytest.raises(BadArgument, match="vocab_size: expected none: the tokenizer bytes determines it"):
        new_tokenizer("bytes", ["a"], vocab_size=300)


def test_a_batch_moves_to_a_device_but_for_what_its_mask_reads():
    batch = Batch(torch.zeros(1, 2), torch.zeros(1, 2), ids=torch.zeros(1, 2), positions=None)
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert moved.tokens.is_meta
    assert moved.targets.is_meta
    assert moved.ids is batch.ids
    assert moved.positions is None
