"""Text generation: stop strings across tokens, whole characters, ends, samples."""

from itertools import pairwise

import pytest

from rearview.errors import BadArgument
from rearview.generation import complete, generate, stream_text
from rearview.generation.stop_strings import StopStrings
from rearview.text import ByteTokenizer, CharTokenizer, sentinel
from tests.generation.models import small_gpt, small_t5

TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def model():
    return small_gpt(context=32, vocab_size=TOKENIZER.vocab_size)


@pytest.mark.parametrize("cut", range(1, 8))
def test_stop_strings_do_not_depend_on_how_the_text_is_split(cut):
    text = "one two END three\n\nfour"
    for strings in (["END"], ["\n\n", "three"], ["two E", "D th"], ["ND", "END"], ["absent"], [], ["wo END", "END"]):
        gate = StopStrings(strings)
        pieces = [gate.feed(text[n : n + cut]) for n in range(0, len(text), cut)] + [gate.flush()]
        ends = [(text.index(s) + len(s), text.index(s)) for s in strings if s in text]
        expected = text[: min(ends)[1]] if ends else text
        assert "".join(pieces) == expected
        assert gate.found == bool(ends)


def test_only_the_beginning_of_a_stop_string_is_held_back():
    gate = StopStrings(["aab"])
    assert [gate.feed(letter) for letter in "xaaac"] == ["x", "", "", "a", "aac"]


@pytest.mark.parametrize("wrong", ["", 3])
def test_an_empty_stop_string_is_refused(wrong):
    with pytest.raises(BadArgument, match="stop: expected non-empty strings, got "):
        StopStrings([wrong])


def test_chunks_join_to_the_text_and_never_split_a_character(model):
    pieces = list(stream_text(model, TOKENIZER, "é", max_new_tokens=60, seed=4))
    tokens = generate(model, TOKENIZER.encode("é"), max_new_tokens=60, seed=4).finish().tokens[0]
    end = tokens.index(TOKENIZER.end_id) if TOKENIZER.end_id in tokens else 60
    assert "".join(piece.text for piece in pieces) == TOKENIZER.decode(tokens[:end])
    assert [piece.reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].reason in ("length", "end token")


def test_a_stop_string_ends_the_text_before_it(model):
    (whole,) = complete(model, TOKENIZER, "To be", max_new_tokens=60, seed=4)
    stop = next(a + b for a, b in pairwise(whole.text[5:]) if "\N{REPLACEMENT CHARACTER}" not in a + b)
    (cut,) = complete(model, TOKENIZER, "To be", max_new_tokens=60, seed=4, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.reason == "stop string"
    assert whole.tokens[: len(cut.tokens)] == cut.tokens
    # Other sequences of the batch continue.
    both = complete(model, TOKENIZER, ["To be", "x"], max_new_tokens=60, seed=4, stop=[stop])
    assert both[0] == cut
    assert both[1] == complete(model, TOKENIZER, "x", max_new_tokens=60, seed=4, stop=[stop])[0]


def test_samples_have_consecutive_seeds(model):
    three = complete(model, TOKENIZER, ["a", "b"], max_new_tokens=5, samples=3, seed=10)
    assert [(each.prompt, each.seed) for each in three] == [(p, s) for p in "ab" for s in (10, 11, 12)]
    assert three[4] == complete(model, TOKENIZER, "b", max_new_tokens=5, seed=11)[0]


def test_an_empty_prompt_starts_a_document(model):
    (empty,) = complete(model, TOKENIZER, "", max_new_tokens=5)
    assert list(empty.tokens) == generate(model, [256], max_new_tokens=5).finish().tokens[0]
    without = CharTokenizer("ab", specials=())
    message = "prompt: expected a non-empty text, since the tokenizer has no token that starts a document, got ''."
    with pytest.raises(BadArgument, match=f"^{message}$"):
        complete(small_gpt(vocab_size=2), without, "", max_new_tokens=5)


def test_the_end_token_is_not_part_of_the_text(model):
    ends = [
        each for each in complete(model, TOKENIZER, "a", max_new_tokens=300, samples=8) if each.reason == "end token"
    ]
    assert ends, "257 tokens, 8 x 300 draws"
    for each in ends:
        assert each.tokens[-1] == TOKENIZER.end_id
        assert each.text == TOKENIZER.decode(each.tokens[:-1])


def test_sliding_is_reported(model):
    pieces = list(stream_text(model, TOKENIZER, "a", max_new_tokens=60, stop_ids=()))
    assert sum(piece.slid for piece in pieces) == 2
    (short,) = complete(model, TOKENIZER, "a", max_new_tokens=5)
    assert not short.slid


def test_t5_shows_its_sentinels():
    tokenizer = CharTokenizer("abcdefgh", specials=("<end>", sentinel(0), sentinel(1)))
    model = small_t5(vocab_size=tokenizer.vocab_size, end_id=tokenizer.end_id)
    answers = complete(model, tokenizer, f"ab{sentinel(0)}c", max_new_tokens=30, samples=6)
    told = [each for each in answers if set(each.tokens) & set(tokenizer.sentinel_ids)]
    assert told
    for each in told:
        assert sentinel(0) in each.text or sentinel(1) in each.text


def test_ids_above_the_vocabulary_have_no_text():
    tokenizer = CharTokenizer("ab")
    (said,) = complete(small_gpt(vocab_size=9), tokenizer, "ab", max_new_tokens=30, stop_ids=())
    assert max(said.tokens) > 2
    assert set(said.text) <= {"a", "b"}


def test_zero_new_tokens():
    (said,) = complete(small_gpt(vocab_size=257), TOKENIZER, "ab", max_new_tokens=0)
    assert (said.text, said.tokens, said.reason) == ("", (), "length")
