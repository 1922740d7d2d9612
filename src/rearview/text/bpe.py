"""Byte-level byte-pair encoding: subwords learned from the text itself, in seconds.

>>> from rearview.text import BPETokenizer
>>> tokenizer = BPETokenizer.train(["low lower lowest " * 9], vocab_size=262)
>>> [tokenizer.decode([id]) for id in tokenizer.encode("slower")]
['s', 'low', 'e', 'r']
>>> tokenizer.vocab_size, tokenizer.end_id
(262, 261)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rearview.errors import BadArgument
from rearview.text.hub import HubTokenizer, tokenizers_library
from rearview.text.pieces import pieces_of
from rearview.text.specials import END, Specials


class BPETokenizer(HubTokenizer):
    """A byte-level BPE tokenizer that is trained here and saved as a standard tokenizer.json."""

    kind = "pieces"

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int = 2048, specials: Sequence[str] = (END,)) -> BPETokenizer:
        """Merge the most frequent pairs until there are `vocab_size` tokens, or no pair is left to merge.

        The vocabulary is the 256 bytes, then the merges, then the special tokens.
        """
        library = tokenizers_library()
        least = 256 + len(specials)
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < least:
            raise BadArgument(
                "vocab_size",
                expected=f"an integer of at least {least}, for the bytes and the special tokens",
                got=repr(vocab_size),
            )
        names = Specials(specials, start=0).names
        inner = library.Tokenizer(library.models.BPE())
        inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size - len(names),
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        # The library keeps hundreds of bytes per character of a text while it divides it, so texts arrive in pieces.
        pieces = (piece for text in ([texts] if isinstance(texts, str) else texts) for piece in pieces_of(text))
        inner.train_from_iterator(pieces, trainer)
        # Adding them after the training puts them at the end of the vocabulary.
        inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in names])
        return cls(inner)
