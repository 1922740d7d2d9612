"""Text in, text out: prompts are encoded, tokens decoded as they come, stop strings watched for.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> tokenizer = ByteTokenizer()
    >>> model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, context=16, layers=1, heads=2, width=8))
    >>> pieces = list(stream_text(model, tokenizer, "To be", max_new_tokens=9, seed=1))
    >>> (whole,) = complete(model, tokenizer, "To be", max_new_tokens=9, seed=1)
    >>> "".join(piece.text for piece in pieces) == whole.text
    True
    >>> whole.prompt, len(whole.tokens), whole.reason
    ('To be', 9, 'length')

A piece never ends within a character, nor within what may become a stop string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rearview.errors import BadArgument
from rearview.generation.generate import Generation, generate
from rearview.generation.prompts import as_seeds
from rearview.generation.step import Reason
from rearview.generation.stopping import StopStrings
from rearview.masks.frame import whole_number
from rearview.models import GPT, T5
from rearview.text import TextStream, Tokenizer, sentinel


@dataclass(frozen=True)
class Piece:
    """Some text of one sequence.

    Args:
        sequence: which; samples of the first prompt come first.
        text: what is new and certain; may be empty in a piece that tells something else.
        reason: why the sequence has come to its end, in its last piece.
        slid: did the oldest tokens slide out of the context meanwhile?
    """

    sequence: int
    text: str
    reason: Reason | None = None
    slid: bool = False


@dataclass(frozen=True)
class Completion:
    """A whole text: `tokens` are all that were generated, the one that ended it included; `text` ends before it."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    reason: Reason
    slid: bool
    seed: int


class TextGeneration(Iterator[Piece]):
    """An iterator over pieces; `completions` are what there is when it has come to its end."""

    def __init__(
        self,
        generation: Generation,
        tokenizer: Tokenizer,
        prompts: list[str],
        stop: Sequence[str],
        seeds: Sequence[int],
    ):
        self._generation, self._prompts, self._seeds = generation, prompts, seeds
        self._sentinels, self._vocab_size = tokenizer.sentinel_ids, tokenizer.vocab_size
        self._streams = [TextStream(tokenizer) for _ in prompts]
        self._gates = [StopStrings(stop) for _ in prompts]
        self._texts = [""] * len(prompts)
        self._slid = [False] * len(prompts)
        self._ready: list[Piece] = [self._last_piece(n) for n, why in enumerate(generation.reasons) if why is not None]

    def __next__(self) -> Piece:
        while not self._ready:
            self._step()
        return self._ready.pop(0)

    @property
    def completions(self) -> list[Completion]:
        """What there is of each sequence, whole once the iterator is at its end."""
        tokens, reasons = self._generation.tokens, self._generation.reasons
        return [
            Completion(prompt, self._texts[n], tuple(tokens[n]), reasons[n] or "stopped", self._slid[n], self._seeds[n])
            for n, prompt in enumerate(self._prompts)
        ]

    def _step(self) -> None:
        step = next(self._generation)
        for n, (token, reason, slid) in enumerate(zip(step.tokens, step.reasons, step.slid, strict=True)):
            if token is None:
                continue
            # The token that ends a document is not part of its text.
            text = "" if reason == "end token" else self._gates[n].feed(self._read(n, token))
            if self._gates[n].found:
                self._generation.stop(n, "stop string")
            self._texts[n] += text
            self._slid[n] |= slid
            if self._generation.reasons[n] is not None:
                self._ready.append(self._last_piece(n, text, slid=slid))
            elif text or slid:
                self._ready.append(Piece(n, text, slid=slid))

    def _read(self, n: int, token: int) -> str:
        # A T5 answers span by span, and the answer means nothing without the names of the spans.
        if token in self._sentinels:
            return self._streams[n].flush() + sentinel(self._sentinels.index(token))
        # A model may have more rows than there are tokens, for the sake of round numbers; nobody trains those.
        if token >= self._vocab_size:
            return ""
        return self._streams[n].feed(token)

    def _last_piece(self, n: int, text: str = "", *, slid: bool = False) -> Piece:
        rest = "" if self._gates[n].found else self._gates[n].feed(self._streams[n].flush())
        if self._gates[n].found:
            self._generation.stop(n, "stop string")
        rest += self._gates[n].flush()
        self._texts[n] += rest
        return Piece(n, text + rest, self._generation.reasons[n], slid)


def stream_text(
    model: GPT | T5,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int,
    samples: int = 1,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> TextGeneration:
    """The text that follows one or several prompts, in pieces, as they come.

    Args:
        prompts: texts. An empty one starts a document, where the tokenizer has a token for that.
        samples: so many sequences for each prompt, with the seeds `seed`, `seed + 1`, ...
        stop: strings that end a text, and are not part of it. The end of a document always does.
        options: those of `generate`.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> model = GPT(GPTConfig(vocab_size=257, context=16, layers=1, heads=2, width=8))
    >>> for piece in stream_text(model, ByteTokenizer(), ["To be", ""], max_new_tokens=2, stop=["\\n"]):
    ...     assert piece.sequence in (0, 1)
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    samples = whole_number(samples, "samples", at_least=1)
    (first,) = as_seeds(seed, 1)
    ends = options.pop("stop_ids", None)
    if ends is None:
        ends = [id for id in (tokenizer.end_id, getattr(model.config, "end_id", None)) if id is not None]
    texts = [text for text in texts for _ in range(samples)]
    encoded = [_encoded(text, tokenizer, reads_specials=isinstance(model, T5)) for text in texts]
    seeds = [first + n % samples for n in range(len(texts))]
    generation = generate(model, encoded, max_new_tokens=max_new_tokens, stop_ids=ends, seed=seeds, **options)
    return TextGeneration(generation, tokenizer, texts, strings, seeds)


def complete(
    model: GPT | T5, tokenizer: Tokenizer, prompts: str | Sequence[str], *, max_new_tokens: int, **options: Any
) -> list[Completion]:
    """The texts that follow one or several prompts, all at once; the options are those of `stream_text`.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> model = GPT(GPTConfig(vocab_size=257, context=16, layers=1, heads=2, width=8))
    >>> [each.seed for each in complete(model, ByteTokenizer(), "To be", max_new_tokens=2, samples=3, seed=7)]
    [7, 8, 9]
    """
    stream = stream_text(model, tokenizer, prompts, max_new_tokens=max_new_tokens, **options)
    for _ in stream:
        pass
    return stream.completions


def _encoded(text: str, tokenizer: Tokenizer, *, reads_specials: bool) -> list[int]:
    ids = tokenizer.encode(text, specials=reads_specials)
    if ids:
        return ids
    if tokenizer.end_id is None:
        expected = "some text: this tokenizer has no token that starts a document"
        raise BadArgument("prompt", expected=expected, came=repr(text))
    return [tokenizer.end_id]
