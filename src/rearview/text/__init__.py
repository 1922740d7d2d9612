"""Conversion between text and token ids: tokenizers of bytes, characters and subwords.

`tokenizer` defines the interface. `builtin` holds the tokenizers that need no library, `bpe` and `hub` those that use
`tokenizers`, and `loader` chooses between them when it reads a folder. `specials` defines the special tokens, and
`stream` decodes text token by token.
"""

from rearview.text.bpe import BPETokenizer
from rearview.text.builtin import ByteTokenizer, CharTokenizer
from rearview.text.hub import HubTokenizer
from rearview.text.loader import load_tokenizer
from rearview.text.specials import END, MASK, PAD, sentinel
from rearview.text.stream import TextStream
from rearview.text.tokenizer import Tokenizer, token_labels

__all__ = [
    "Tokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "BPETokenizer",
    "HubTokenizer",
    "load_tokenizer",
    "token_labels",
    "TextStream",
    "END",
    "MASK",
    "PAD",
    "sentinel",
]
