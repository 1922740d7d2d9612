"""Text to tokens and back: bytes, characters, or pieces of words."""

from rearview.text.bpe import BPETokenizer
from rearview.text.bytewise import ByteTokenizer
from rearview.text.characters import CharTokenizer
from rearview.text.hub import HubTokenizer
from rearview.text.load import load_tokenizer
from rearview.text.specials import END, MASK, PAD, sentinel
from rearview.text.stream import TextStream
from rearview.text.tokenizer import Tokenizer

__all__ = [
    "Tokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "BPETokenizer",
    "HubTokenizer",
    "load_tokenizer",
    "TextStream",
    "END",
    "MASK",
    "PAD",
    "sentinel",
]
