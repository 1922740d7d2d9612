"""Greedy tokens and filled gaps are those of transformers, for its own small random models."""

from pathlib import Path

import pytest
import torch

from rearview.generation import fill, generate
from rearview.models import BERT, GPT, T5

transformers = pytest.importorskip("transformers")

PROMPTS = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14]]
NEW = 12


@pytest.fixture(autouse=True)
def quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()
    transformers.logging.set_verbosity(before)


def saved(model, folder: Path) -> Path:
    # Larger weights than a model starts with: no near ties.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    model.eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_gpt(tmp_path, prompt):
    config = transformers.GPT2Config(vocab_size=40, n_positions=32, n_embd=32, n_layer=2, n_head=4, eos_token_id=None)
    theirs = transformers.GPT2LMHeadModel(config)
    ours = GPT.from_pretrained(saved(theirs, tmp_path))
    expected = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        repetition_penalty=1.2,
    )
    found = generate(ours, prompt, max_new_tokens=NEW, temperature=0, repetition_penalty=1.2).finish()
    assert found.tokens[0] == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_t5_in_a_padded_batch(tmp_path, kind):
    config = transformers.T5Config(
        vocab_size=40, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj=kind,
        decoder_start_token_id=0, eos_token_id=1, pad_token_id=0, tie_word_embeddings=kind == "relu",
    )  # fmt: skip
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in theirs.decoder.block.parameters():
            parameter.mul_(3.0)
    theirs.save_pretrained(tmp_path)
    longest = max(map(len, PROMPTS))
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS])
    options = {"max_new_tokens": NEW, "repetition_penalty": 1.5}
    expected = theirs.generate(padded, attention_mask=(padded != 0).long(), do_sample=False, **options)
    found = generate(T5.from_pretrained(tmp_path), PROMPTS, temperature=0, **options).finish().tokens
    for ours, row in zip(found, expected[:, 1:].tolist(), strict=True):
        assert ours == row[: len(ours)]
        assert len(ours) == NEW or ours[-1] == 1
    assert len({tuple(said) for said in found}) > 1


class Words:
    """A tokenizer of numbers: "7 8 [MASK]"."""

    kind, vocab_size, end_id, mask_id, pad_id, sentinel_ids = "words", 40, None, 3, None, ()

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        return [3 if word == "[MASK]" and specials else int(word) for word in text.split()]

    def decode(self, ids) -> str:
        return " ".join(map(str, ids))

    def token_bytes(self, id: int) -> bytes | None:
        return None

    def save(self, folder) -> None:
        raise NotImplementedError


def test_bert_fills_as_theirs(tmp_path):
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    theirs = transformers.BertForMaskedLM(config)
    ours = BERT.from_pretrained(saved(theirs, tmp_path))
    gaps = fill(ours, Words(), "7 8 [MASK] 9 [MASK]", top=4)
    with torch.no_grad():
        expected = theirs(torch.tensor([[7, 8, 3, 9, 3]])).logits[0].softmax(-1)
    assert [gap.position for gap in gaps] == [2, 4]
    for gap in gaps:
        top = expected[gap.position].topk(4)
        assert [candidate.id for candidate in gap.candidates] == top.indices.tolist()
        assert [candidate.probability for candidate in gap.candidates] == pytest.approx(top.values.tolist(), rel=1e-4)
        assert gap.candidates[0].text == str(gap.candidates[0].id)
