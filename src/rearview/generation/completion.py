"""Text generation: encode the prompts, decode the new tokens as they are generated, and end at stop strings.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> tokenizer = ByteTokenizer()
    >>> model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, context=16, layers=1, heads=2, width=8))
    >>> chunks = list(stream_text(model, tokenizer, "To be", max_new_tokens=9, seed=1))
    >>> (whole,) = complete(model, tokenizer, "To be", max_new_tokens=9, seed=1)
    >>> "".join(chunk.text for chunk in chunks) == whole.text
    True
    >>> whole.prompt, len(whole.tokens), whole.reason
    ('To be', 9, 'length')

A chunk never ends within a character or within what may become a stop string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

from rearview.errors import BadArgument
from rearview.generation.decoding import GenerateOptions, generate
from rearview.generation.figures import GenerationFigures
from rearview.generation.prompts import as_seeds
from rearview.generation.steps import Generation, Reason
from rearview.generation.stop_strings import StopStrings
from rearview.masks.frame import whole_number
from rearview.models import GPT, T5
from rearview.text import TextStream, Tokenizer, sentinel


@dataclass(frozen=True)
class TextChunk:
    """New text of one sequence.

    Args:
        sequence: index of the sequence. Samples of the same prompt are neighbours.
        text: the new text, which may be empty if the chunk reports something else.
        reason: why the sequence ended, in its last chunk.
        slid: whether the oldest tokens slid out of the context.
    """

    sequence: int
    text: str
    reason: Reason | None = None
    slid: bool = False


@dataclass(frozen=True)
class Completion:
    """A generated text. `tokens` are all new tokens, including the one that ended the text; `text` excludes it."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    reason: Reason
    slid: bool
    seed: int


class TextGeneration(Iterator[TextChunk]):
    """An iterator over chunks of text. After its end, `completions` holds the whole texts."""

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
        ended = [n for n, reason in enumerate(generation.reasons) if reason is not None]
        self._ready: list[TextChunk] = [self._last_chunk(n) for n in ended]

    def __next__(self) -> TextChunk:
        while not self._ready:
            self._step()
        return self._ready.pop(0)

    @property
    def completions(self) -> list[Completion]:
        """The text of each sequence so far, complete once the iterator has ended."""
        tokens, reasons = self._generation.tokens, self._generation.reasons
        return [
            Completion(prompt, self._texts[n], tuple(tokens[n]), reasons[n] or "stopped", self._slid[n], self._seeds[n])
            for n, prompt in enumerate(self._prompts)
        ]

    @property
    def figures(self) -> GenerationFigures:
        """Tokens, passes of the model, time, and what a draft contributed so far."""
        return self._generation.figures

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
                self._ready.append(self._last_chunk(n, text, slid=slid))
            elif text or slid:
                self._ready.append(TextChunk(n, text, slid=slid))

    def _read(self, n: int, token: int) -> str:
        # A T5 writes its answer span by span, and needs the names of the spans to be understood.
        if token in self._sentinels:
            return self._streams[n].flush() + sentinel(self._sentinels.index(token))
        # The embedding of a model may be padded to more rows than there are tokens.
        if token >= self._vocab_size:
            return ""
        return self._streams[n].feed(token)

    def _last_chunk(self, n: int, text: str = "", *, slid: bool = False) -> TextChunk:
        rest = "" if self._gates[n].found else self._gates[n].feed(self._streams[n].flush())
        if self._gates[n].found:
            self._generation.stop(n, "stop string")
        rest += self._gates[n].flush()
        self._texts[n] += rest
        return TextChunk(n, text + rest, self._generation.reasons[n], slid)


def stream_text(
    model: GPT | T5,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int,
    samples: int = 1,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    stop_ids: Iterable[int] | None = None,
    **options: Unpack[GenerateOptions],
) -> TextGeneration:
    """The text that follows one or several prompts, in chunks as it is generated.

    Args:
        prompts: one or several texts. An empty one starts a document, if the tokenizer has a token for that.
        samples: the number of sequences per prompt, with the seeds `seed`, `seed + 1`, ...
        stop: strings that end a text; they are not part of it.
        stop_ids: tokens that end a text, by default the end tokens of the tokenizer and of the model.
        options: the other options of `generate`.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> model = GPT(GPTConfig(vocab_size=257, context=16, layers=1, heads=2, width=8))
    >>> for chunk in stream_text(model, ByteTokenizer(), ["To be", ""], max_new_tokens=2, stop=["\\n"]):
    ...     assert chunk.sequence in (0, 1)
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    samples = whole_number(samples, "samples", at_least=1)
    (first,) = as_seeds(seed, 1)
    if stop_ids is None:
        model_end = model.config.end_id if isinstance(model, T5) else None
        stop_ids = [id for id in (tokenizer.end_id, model_end) if id is not None]
    texts = [text for text in texts for _ in range(samples)]
    encoded = [_encoded(text, tokenizer, specials=isinstance(model, T5)) for text in texts]
    seeds = [first + n % samples for n in range(len(texts))]
    generation = generate(model, encoded, max_new_tokens=max_new_tokens, stop_ids=stop_ids, seed=seeds, **options)
    return TextGeneration(generation, tokenizer, texts, strings, seeds)


def complete(
    model: GPT | T5,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int,
    samples: int = 1,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    stop_ids: Iterable[int] | None = None,
    **options: Unpack[GenerateOptions],
) -> list[Completion]:
    """The whole texts that follow one or several prompts. The arguments are those of `stream_text`.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> model = GPT(GPTConfig(vocab_size=257, context=16, layers=1, heads=2, width=8))
    >>> [each.seed for each in complete(model, ByteTokenizer(), "To be", max_new_tokens=2, samples=3, seed=7)]
    [7, 8, 9]
    """
    stream = stream_text(
        model,
        tokenizer,
        prompts,
        max_new_tokens=max_new_tokens,
        samples=samples,
        stop=stop,
        seed=seed,
        stop_ids=stop_ids,
        **options,
    )
    for _ in stream:
        pass
    return stream.completions


def _encoded(text: str, tokenizer: Tokenizer, *, specials: bool) -> list[int]:
    ids = tokenizer.encode(text, specials=specials)
    if ids:
        return ids
    if tokenizer.end_id is None:
        expected = "a non-empty text, since the tokenizer has no token that starts a document"
        raise BadArgument("prompt", expected=expected, got=repr(text))
    return [tokenizer.end_id]
