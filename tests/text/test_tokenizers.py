"""Tokenizers: decoding inverts encoding, text cannot contain special tokens, errors say what to do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rearview.errors import BadArgument, BadFile, MissingExtra
from rearview.text import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    HubTokenizer,
    TextStream,
    Tokenizer,
    load_tokenizer,
    sentinel,
    token_labels,
)

TEXT = "To be, or not to be, that is the question: a naïve café, 水 and 🙂.\n"
BPE = BPETokenizer.train([TEXT * 3], vocab_size=300)
KINDS = {"bytes": ByteTokenizer(), "characters": CharTokenizer.of([TEXT]), "pieces": BPE}
kinds = pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
# Text that UTF-8 can encode.
texts = st.text(st.characters(exclude_categories=["Cs"]))


def word_pieces() -> HubTokenizer:
    """A BERT-like tokenizer: not byte-level, with [CLS] and [SEP] around a text."""
    import tokenizers as library

    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "the", "cat", "##s", "sat", "."]
    inner = library.Tokenizer(library.models.WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    inner.decoder = library.decoders.WordPiece()
    inner.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    inner.add_special_tokens(words[:5])
    return HubTokenizer(inner)


@kinds
def test_decoding_inverts_encoding(tokenizer: Tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert 0 <= min(ids) <= max(ids) < tokenizer.vocab_size
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert isinstance(tokenizer, Tokenizer)


@given(texts)
def test_decoding_inverts_encoding_of_any_text(text: str):
    for tokenizer in (KINDS["bytes"], BPE, *([CharTokenizer.of([text])] if text else [])):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, 256)))
def test_a_stream_of_bytes_is_the_text(ids: list[int]):
    stream = TextStream(KINDS["bytes"])
    assert "".join(map(stream.feed, ids)) + stream.flush() == KINDS["bytes"].decode(ids)


@given(st.lists(st.integers(0, BPE.vocab_size - 1)))
def test_a_stream_of_pieces_is_the_text(ids: list[int]):
    stream = TextStream(BPE)
    assert "".join(map(stream.feed, ids)) + stream.flush() == BPE.decode(ids)


@kinds
def test_a_stream_never_shows_half_a_character(tokenizer: Tokenizer):
    stream = TextStream(tokenizer)
    pieces = [stream.feed(id) for id in tokenizer.encode(TEXT)]
    assert "�" not in "".join(pieces)
    assert "".join(pieces) == TEXT
    assert stream.flush() == ""


def test_a_stream_of_words_keeps_their_spaces():
    tokenizer = word_pieces()
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("the cats sat.", specials=True)
    assert [stream.feed(id) for id in ids] == ["", "the", " cat", "s", " sat", ".", ""]
    assert stream.flush() == ""


def test_an_unfinished_character_is_flushed():
    stream = TextStream(ByteTokenizer())
    assert stream.feed(0xC3) == ""
    assert stream.flush() == "�"
    assert stream.feed(ord("a")) == "a"


@kinds
def test_a_saved_tokenizer_loads_as_the_same(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert (again.vocab_size, again.end_id, again.kind) == (tokenizer.vocab_size, tokenizer.end_id, tokenizer.kind)
    assert again.decode(again.encode(TEXT)) == TEXT


SPECIALS = ("<end>", "<mask>", "<pad>", sentinel(0), sentinel(1))


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(SPECIALS),
        CharTokenizer.of([TEXT], SPECIALS),
        BPETokenizer.train([TEXT], vocab_size=280, specials=SPECIALS),
    ],
    ids=KINDS,
)
def test_special_tokens_have_the_last_ids(tokenizer: Tokenizer, tmp_path: Path):
    first = tokenizer.vocab_size - len(SPECIALS)
    tokenizer.save(tmp_path)
    for one in (tokenizer, load_tokenizer(tmp_path)):
        assert (one.end_id, one.mask_id, one.pad_id) == (first, first + 1, first + 2)
        assert one.sentinel_ids == (first + 3, first + 4)
        assert one.decode([first + 1, *one.encode("be"), first]) == "be"
        hidden = one.encode("to <mask>e<end>", specials=True)
        assert hidden == [*one.encode("to "), first + 1, *one.encode("e"), first]


def test_text_does_not_encode_to_a_special_token():
    for tokenizer in (ByteTokenizer(), BPE):
        ids = tokenizer.encode("<end>")
        assert tokenizer.end_id not in ids
        assert tokenizer.decode(ids) == "<end>"


def test_a_tokenizer_without_special_tokens():
    plain = ByteTokenizer(specials=())
    assert (plain.vocab_size, plain.end_id, plain.encode("<end>", specials=True)) == (256, None, list(b"<end>"))


def test_a_hub_tokenizer_knows_its_special_tokens(tmp_path: Path):
    tokenizer = word_pieces()
    assert (tokenizer.end_id, tokenizer.mask_id, tokenizer.pad_id) == (2, 3, 0)
    assert tokenizer.encode("the [MASK]", specials=True) == [1, 5, 3, 2]
    assert tokenizer.decode([1, 5, 6, 7, 2]) == "the cats"
    tokenizer.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["mask_token"] == "[MASK]"
    # The config may name another token, and some folders do so with an object.
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "[PAD]"}}))
    assert load_tokenizer(tmp_path).end_id == 0


def test_pieces_are_read_by_transformers(tmp_path: Path):
    from transformers import AutoTokenizer

    BPE.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT)["input_ids"] == BPE.encode(TEXT)
    assert theirs.eos_token_id == BPE.end_id


def test_training_pieces_is_repeatable():
    again = BPETokenizer.train([TEXT * 3], vocab_size=300)
    assert again.encode(TEXT) == BPE.encode(TEXT)
    assert again.vocab_size == 300
    # No pair is left to merge.
    assert BPETokenizer.train(["aa"], vocab_size=999).vocab_size == 258


def test_unknown_characters_are_named():
    with pytest.raises(BadArgument) as error:
        CharTokenizer("abc").encode("axbyc")
    assert str(error.value) == (
        "text: expected the 3 characters of the tokenizer's alphabet, got 'x', 'y'. "
        "Remove them, or train with a tokenizer that encodes any text: bytes or bpe."
    )
    with pytest.raises(BadArgument, match="and 18 others"):
        CharTokenizer("x").encode("abcdefghijklmnopqrstuvwxyz ")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: ByteTokenizer().encode("\ud800"), "text: expected text that UTF-8 can encode"),
        (lambda: BPE.encode("\ud800"), "text: expected text that UTF-8 can encode"),
        (lambda: ByteTokenizer().encode(b"a"), "text: expected a string, got bytes"),  # pyright: ignore[reportArgumentType]
        (lambda: BPE.encode(None), "text: expected a string, got NoneType"),  # pyright: ignore[reportArgumentType]
        (lambda: ByteTokenizer().decode([257]), "ids: expected ids from 0 to 256, got 257"),
        (lambda: CharTokenizer("ab").decode([-1]), "ids: expected ids from 0 to 2, got -1"),
        (lambda: BPE.decode([300]), "ids: expected ids from 0 to 299, got 300"),
        (lambda: ByteTokenizer("<end>"), 'specials: expected names such as ("<end>", "<mask>"), got \'<end>\'.'),
        (lambda: ByteTokenizer(("<a>", "<a>")), "specials: expected distinct names, got ('<a>', '<a>')."),
        (lambda: CharTokenizer("aa"), "alphabet: expected a string of distinct characters, got 'aa'."),
        (lambda: CharTokenizer.of([""]), "texts: expected texts with at least one character, got none"),
        (
            lambda: BPETokenizer.train(["a"], vocab_size=256),
            "vocab_size: expected an integer of at least 257, for the bytes and the special tokens, got 256.",
        ),
    ],
)
def test_bad_arguments_are_refused(act, message: str):
    with pytest.raises(BadArgument) as error:
        act()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (None, "", "has no tokenizer: neither rearview_tokenizer.json nor tokenizer.json"),
        ("rearview_tokenizer.json", "{", "line 1, column 2: this is not JSON"),
        ("rearview_tokenizer.json", '{"kind": "bytes"}', "is not a tokenizer"),
        ("rearview_tokenizer.json", '{"kind": "characters", "specials": [], "alphabet": ""}', "is not a tokenizer"),
        ("rearview_tokenizer.json", '{"kind": "runes", "specials": []}', 'has the unknown tokenizer kind "runes"'),
        ("tokenizer.json", "{}", "is not a tokenizer that the tokenizers library can read"),
    ],
)
def test_errors_name_the_damaged_file(name: str | None, content: str, why: str, tmp_path: Path):
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadFile, match=why) as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_damaged_config_of_a_tokenizer(tmp_path: Path):
    BPE.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(BadFile, match=r"tokenizer_config\.json: line 1, column \d+: this is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(BadFile, match="is not a JSON object"):
        load_tokenizer(tmp_path)


def test_bytes_and_characters_need_no_library():
    script = """
import sys
sys.modules["tokenizers"] = None
from rearview.text import *
from rearview.errors import MissingExtra
assert ByteTokenizer().decode(ByteTokenizer().encode("hi")) == "hi"
try:
    BPETokenizer.train(["a"])
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "pip install tokenizers (the extra 'models' of rearview includes it)" in done.stdout, done.stderr
    assert issubclass(MissingExtra, ImportError)


def test_labels_show_what_cannot_be_seen():
    assert token_labels(ByteTokenizer(), [0, 7, 9, 27, 127, 195]) == ["\\x00", "\\x07", "⇥", "\\x1b", "\\x7f", "\\xc3"]
    # A character that turns the direction of the text around would move the labels after it.
    tokenizer = CharTokenizer("a\u202e\u200b")
    assert token_labels(tokenizer, tokenizer.encode("a\u202e\u200b")) == ["a", "\\u202e", "\\u200b"]
