"""Documents as tokens: packing changes no output, and the batch of a step depends on the step alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rearview import causal, full, window
from rearview.errors import BadArgument
from rearview.models import BERT, GPT, BERTConfig, GPTConfig
from rearview.text import BPETokenizer, ByteTokenizer, CharTokenizer
from rearview.training import Batches, Corpus, TextData
from rearview.training.batches import Rows, in_order

TOKENIZER = ByteTokenizer()
TEXTS = ["the first document", "a second one", "third", "and the fourth, which is the last and the longest of them"]


def test_a_document_starts_with_the_end_of_the_one_before():
    corpus = Corpus.of(["ab", "c"], TOKENIZER)
    assert corpus.tokens.tolist() == [256, 97, 98, 256, 99, 256]
    assert corpus.starts.tolist() == [0, 3]
    assert corpus.characters == 3
    # Without an end token they are adjacent, and their starts are still known.
    plain = Corpus.of(["ab", "c"], ByteTokenizer(specials=()))
    assert (plain.tokens.tolist(), plain.starts.tolist()) == ([97, 98, 99], [0, 2])


def test_the_split_is_between_documents_if_one_begins_near():
    texts = ["x" * 99] * 10
    train, held_out = Corpus.of(texts, TOKENIZER).split(0.12, TOKENIZER)
    assert (len(train), len(held_out)) == (900, 101)
    assert held_out.tokens[0] == TOKENIZER.end_id
    assert (train.characters, held_out.characters) == (99 * 9, 99)
    assert train.starts.tolist() == list(range(0, 900, 100))


def test_the_split_is_inside_a_document_otherwise():
    text = "".join(chr(97 + n % 26) for n in range(1000))
    train, held_out = Corpus.of([text], TOKENIZER).split(0.1, TOKENIZER)
    assert (len(train), len(held_out)) == (902, 100)
    assert TOKENIZER.decode(train.tokens.tolist()) + TOKENIZER.decode(held_out.tokens.tolist()) == text
    assert train.characters + held_out.characters == 1000
    assert held_out.starts.tolist() == [0]


@given(st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_a_split_loses_nothing(texts: list[str], share: float):
    corpus = Corpus.of(texts, TOKENIZER)
    train, held_out = corpus.split(share, TOKENIZER)
    assert torch.equal(torch.cat([train.tokens, held_out.tokens]), corpus.tokens)
    assert train.characters + held_out.characters == sum(map(len, texts))
    assert min(len(train), len(held_out)) > 0


def models() -> list[GPT | BERT]:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 257, "context": 64, "layers": 2, "heads": 2, "width": 16}
    return [
        GPT(GPTConfig(**sizes)),
        GPT(GPTConfig(**sizes, positions="rotary", mask=causal() & window(5))),
        GPT(GPTConfig(**sizes, mask=full())),
        BERT(BERTConfig(**sizes)),
    ]


@pytest.mark.parametrize("model", models(), ids=["gpt", "rotary, windowed", "unmasked", "bert"])
def test_packed_documents_give_the_same_outputs_as_alone(model: GPT | BERT):
    corpus = Corpus.of(TEXTS[:3], TOKENIZER)
    batch = Rows(corpus, len(corpus) - 1).at(torch.zeros(1, dtype=torch.int64))
    assert batch.mask is not None
    model.eval()
    with torch.no_grad():
        packed = model(batch.tokens, mask=batch.mask, positions=batch.positions)[0]
        for start, text in zip(corpus.starts.tolist(), TEXTS, strict=False):
            alone = model(torch.tensor([[256, *TOKENIZER.encode(text)]]))[0]
            torch.testing.assert_close(packed[start : start + len(alone)], alone, atol=1e-6, rtol=1e-5)


def test_a_change_in_one_document_is_not_heard_in_another():
    model = models()[0].eval()
    corpus = Corpus.of(TEXTS[:3], TOKENIZER)
    batch = Rows(corpus, len(corpus) - 1).at(torch.zeros(1, dtype=torch.int64))
    second = int(corpus.starts[1])
    changed = batch.tokens.clone()
    changed[0, second - 1] = 0
    with torch.no_grad():
        before = model(batch.tokens, mask=batch.mask, positions=batch.positions)
        after = model(changed, mask=batch.mask, positions=batch.positions)
    assert torch.equal(before[:, second:], after[:, second:])
    assert not torch.equal(before[:, second - 1], after[:, second - 1])


def test_rows_within_one_document_need_no_mask():
    corpus = Corpus.of(["x" * 100], TOKENIZER)
    assert all(batch.mask is None for batch in in_order(corpus, context=8, batch=2, most_tokens=999))
    two = Corpus.of(["x" * 60, "y" * 60], TOKENIZER)
    rows = Rows(two, 8)
    assert rows.at(torch.tensor([0, 40])).mask is None
    # A row that begins with a document, holds one.
    assert rows.at(torch.tensor([61])).mask is None
    crossing = rows.at(torch.tensor([0, 57]))
    assert crossing.ids is not None
    assert crossing.positions is not None
    assert crossing.ids.tolist() == [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1]]
    assert crossing.positions.tolist() == [list(range(8)), [0, 1, 2, 3, 0, 1, 2, 3]]


def test_targets_are_the_next_tokens():
    corpus = Corpus.of(TEXTS, TOKENIZER)
    batch = Batches(corpus, context=8, batch=4, seed=0)[3]
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    joined = corpus.tokens.tolist()
    for row, last in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
        assert any(joined[at : at + 9] == [*row, last] for at in range(len(joined) - 8))


@given(st.integers(0, 500), st.integers(0, 5), st.integers(1, 40), st.integers(1, 9))
def test_a_batch_is_a_function_of_its_number(number: int, seed: int, context: int, size: int):
    corpus = Corpus.of(["".join(chr(97 + n % 26) for n in range(300))], TOKENIZER)
    first = Batches(corpus, context=context, batch=size, seed=seed)
    alone = first[number]
    # Whatever batches were read before, in whatever order.
    second = Batches(corpus, context=context, batch=size, seed=seed)
    for other in (number + 3, 0, number + 1):
        second[other]
    assert torch.equal(second[number].tokens, alone.tokens)
    assert alone.tokens.shape == (size, context)


def test_an_epoch_has_every_window_once():
    corpus = Corpus.of(["".join(chr(97 + n % 26) for n in range(400))], TOKENIZER)
    batches = Batches(corpus, context=10, batch=3, seed=1)
    # The windows of one epoch do not overlap, so their first places are all different.
    assert batches.windows == 39
    begins = batches._order(0)
    assert len(set(begins.tolist())) == 39
    assert begins.sort().values.diff().unique().tolist() == [10]
    assert not torch.equal(begins, batches._order(1))
    joined = torch.cat([batches[n].tokens for n in range(13)])
    assert torch.equal(joined, Rows(corpus, 10).at(begins).tokens)


def test_seeds_give_different_batches():
    corpus = Corpus.of(["".join(chr(97 + n % 26) for n in range(400))], TOKENIZER)
    one, other = (Batches(corpus, context=10, batch=3, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(one.tokens, other.tokens)


def test_the_shortest_text_that_fits():
    corpus = Corpus.of(["abcdefgh"], TOKENIZER)
    batches = Batches(corpus, context=9, batch=5, seed=0)
    assert batches[7].tokens.tolist() == [[256, *b"abcdefgh"]] * 5
    assert batches[7].targets.tolist() == [[*b"abcdefgh", 256]] * 5


def test_validation_reads_the_same_text_in_order():
    corpus = Corpus.of(["".join(chr(97 + n % 26) for n in range(400))], TOKENIZER)
    whole = torch.cat([batch.tokens for batch in in_order(corpus, context=10, batch=7, most_tokens=9999)])
    assert whole.flatten().tolist() == corpus.tokens[:400].tolist()
    some = torch.cat([batch.tokens for batch in in_order(corpus, context=10, batch=7, most_tokens=80)])
    assert some.shape == (8, 10)
    assert some[1].tolist() == whole[5].tolist()


def test_text_that_is_too_short_says_what_to_do():
    data = TextData.of(["to be or not to be"], CharTokenizer.of(["to be or not to be"]))
    with pytest.raises(BadArgument) as error:
        data.check_context(64)
    assert str(error.value) == (
        "context: expected fewer tokens than the training part of the text has (18 of 20), got 64. "
        "Use more text, or a context of at most 17."
    )
    with pytest.raises(BadArgument, match=r"the validation part of the text has \(2 of 20\)"):
        data.check_context(16)
    with pytest.raises(BadArgument, match="texts: expected text to train on, got none"):
        TextData.of(["", ""], TOKENIZER)
    with pytest.raises(BadArgument, match="validation: expected a fraction between 0 and 1"):
        TextData.of(["abc"], TOKENIZER, validation=0)


def test_a_fingerprint_is_of_the_documents():
    one = TextData.of(["ab", "cd"], TOKENIZER)
    assert one.fingerprint == TextData.of(["ab", "cd"], CharTokenizer("abcd")).fingerprint
    assert one.fingerprint != TextData.of(["abcd"], TOKENIZER).fingerprint
    assert one.fingerprint != TextData.of(["cd", "ab"], TOKENIZER).fingerprint


def test_characters_are_counted_and_not_tokens():
    text = "naïve café 水 " * 50
    data = TextData.of([text], BPETokenizer.train([text], vocab_size=280))
    assert data.train.characters + data.validation.characters == len(text)
    assert len(data.train) + len(data.validation) < len(text)
