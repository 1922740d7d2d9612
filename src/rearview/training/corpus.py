"""Documents as one stream of tokens, and where each begins.

A document is stored as the end token followed by its tokens. The end of one document starts the next, so every token
has a next token to predict, and a model learns to begin a text after an end token.

>>> from rearview.text import CharTokenizer
>>> corpus = Corpus.of(["ab", "ba"], CharTokenizer("ab"))
>>> corpus.tokens.tolist(), corpus.starts.tolist(), corpus.characters
([2, 0, 1, 2, 1, 0, 2], [0, 3], 4)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.text import Tokenizer
from rearview.text.tokenizer import encode_tensor

# The validation part begins with a document if one begins this near, as a fraction of all tokens.
NEAR = 0.05
# The tokens that are counted at once, and at most, where all of a text is looked at.
CHUNK, COUNTED = 1 << 22, 1 << 27


@dataclass(frozen=True)
class Corpus:
    """Documents in tokens.

    Args:
        tokens: integers [N], in memory (int32) or in a file (uint16 or int32), which is read where it is used.
        starts: the positions where documents begin, ascending.
        characters: the number of characters that the tokens decode to.
        marks: for tokens in a file, some positions and the number of characters before each, [M, 2].
    """

    tokens: Tensor
    starts: Tensor
    characters: int
    marks: Tensor | None = None

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Tokenizer) -> Corpus:
        """Texts in tokens, one document each."""
        pieces, starts, end = [], [], tokenizer.end_id
        length = 0
        for text in texts:
            ids = encode_tensor(tokenizer, text)
            starts.append(length)
            pieces += [ids] if end is None else [torch.tensor([end], dtype=torch.int32), ids]
            length += len(ids) + (end is not None)
        if end is not None:
            pieces.append(torch.tensor([end], dtype=torch.int32))
        return cls(torch.cat(pieces), torch.tensor(starts), sum(map(len, texts)))

    def __len__(self) -> int:
        return len(self.tokens)

    def bits_per_character(self, loss: float) -> float:
        """A mean loss in nats per token, as bits per character of this text.

        >>> from rearview.text import CharTokenizer
        >>> round(Corpus.of(["abab"], CharTokenizer("ab")).bits_per_character(math.log(2)), 3)
        1.25
        """
        # The first token is no target; the end of a document is a token without a character.
        return loss * (len(self) - 1) / max(self.characters, 1) / math.log(2)

    def split(self, share: float, tokenizer: Tokenizer) -> tuple[Corpus, Corpus]:
        """The first part, and the last `share` of the tokens; split between two documents if one begins near."""
        if not 0 < share < 1:
            raise BadArgument("validation", expected="a fraction between 0 and 1", got=share)
        total = len(self)
        cut = min(max(round(total * (1 - share)), 1), total - 1)
        inner = self.starts[self.starts > 0]
        if len(inner):
            nearest = int(inner[(inner - cut).abs().argmin()])
            cut = nearest if abs(nearest - cut) <= NEAR * total else cut
        last = self._part(cut, total, tokenizer)
        # The other characters belong to the first part; a character that is split between both counts once.
        return self._part(0, cut, tokenizer, self.characters - last.characters), last

    def chunks(self, most: int = COUNTED, size: int = CHUNK) -> Iterator[Tensor]:
        """All tokens in order, int64, a chunk at a time; or `most` of them in chunks that are evenly spread.

        >>> from rearview.text import CharTokenizer
        >>> [chunk.tolist() for chunk in Corpus.of(["abab"], CharTokenizer("ab")).chunks(size=4)]
        [[2, 0, 1, 0], [1, 2]]
        """
        count = -(-len(self) // size)
        kept = count if len(self) <= most else max(1, most // size)
        for n in range(kept):
            begin = n * count // kept * size
            yield self.tokens[begin : begin + size].long()

    def _part(self, begin: int, end: int, tokenizer: Tokenizer, characters: int | None = None) -> Corpus:
        tokens = self.tokens[begin:end]
        starts = self.starts[(self.starts >= begin) & (self.starts < end)] - begin
        # A document that is split continues in the last part as a document that begins there.
        if not len(starts) or starts[0] != 0:
            starts = torch.cat([torch.zeros(1, dtype=torch.int64), starts])
        if characters is None:
            characters = self._characters_from(begin, tokenizer)
        return Corpus(tokens.clone() if self.marks is None else tokens, starts, characters)

    def _characters_from(self, begin: int, tokenizer: Tokenizer) -> int:
        """The number of characters from a position to the end."""
        if self.marks is None:
            return len(tokenizer.decode(self.tokens[begin:].tolist()))
        place = int(torch.searchsorted(self.marks[:, 0].contiguous(), begin))
        mark, before = self.marks[place].tolist()
        return len(tokenizer.decode(self.tokens[begin:mark].tolist())) + self.characters - before
