"""Hugging Face checkpoints: folders with config.json and safetensors, in one file or in shards. No pickle.

>>> import tempfile, torch
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).eval()
>>> with tempfile.TemporaryDirectory() as folder:
...     model.save_pretrained(folder)
...     same = load(folder)
>>> tokens = torch.tensor([[1, 2, 3]])
>>> torch.equal(same(tokens), model(tokens))
True
"""

from rearview.models.checkpoint.reader import load
from rearview.models.checkpoint.writer import save

__all__ = ["load", "save"]
