"""What `rearview generate` does: load a model, generate and print text, or fill in masked tokens."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from rearview.cli.commands import option_name
from rearview.cli.streaming import Streamed
from rearview.cli.terminal import note
from rearview.errors import BadArgument
from rearview.generation import Candidate, Completion, ModelDraft, TextGeneration, fill, stream_text
from rearview.models import BERT, GPT, T5
from rearview.models.checkpoint import load
from rearview.text import Tokenizer, load_tokenizer
from rearview.text.tokenizer import first_difference
from rearview.training.checkpoint.folders import model_folder

# The options that apply to a BERT.
FOR_BERT = {"folder", "prompt", "top", "as_json"}

# A new seed is below this number, so that it is quickly typed again.
NEW_SEEDS = 1_000_000


def run_generate(
    folder: Path,
    prompts: Sequence[str],
    given: set[str],
    *,
    max_tokens: int,
    stop: Sequence[str],
    when_full: str,
    temperature: float,
    greedy: bool,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float | None,
    seed: int | None,
    samples: int,
    no_cache: bool,
    batch_invariant: bool,
    draft_folder: Path | None,
    draft_tokens: int,
    draft_branches: int,
    top: int,
    as_json: bool,
) -> None:
    """Generate text after each prompt; `given` are the options on the command line."""
    if greedy and "temperature" in given:
        raise BadArgument("--greedy", expected="either --greedy or --temperature", got="both")
    if draft_folder is None and (lonely := sorted(given & {"draft_tokens", "draft_branches"})):
        raise BadArgument(option_name(lonely[0]), expected="--draft as well", got="no draft")
    texts = [_read(text) for text in prompts]
    model, tokenizer = _model_and_tokenizer(folder, "DIR")
    if isinstance(model, BERT):
        _check_given(given, FOR_BERT, "a BERT")
        for number, text in enumerate(texts):
            _print_gaps(model, tokenizer, text, top=top, as_json=as_json, is_first=number == 0)
        return
    _check_given(given, given - {"top"}, "a model that is not a BERT")
    if batch_invariant:
        model.batch_invariant = True
    is_random = not greedy and temperature > 0
    chosen = seed if seed is not None else random.SystemRandom().randrange(NEW_SEEDS) if is_random else 0
    draft = None
    if draft_folder is not None:
        draft = _draft(draft_folder, tokenizer, tokens=draft_tokens, branches=draft_branches)
    stream = stream_text(
        model,
        tokenizer,
        texts,
        max_new_tokens=max_tokens,
        samples=samples,
        stop=stop,
        seed=chosen,
        temperature=0 if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        use_cache=False if no_cache else None,
        when_full=when_full,  # pyright: ignore[reportArgumentType]  # checked there
        draft=draft,
    )
    if as_json:
        for piece in stream:
            if piece.reason is not None:
                print(_as_json(stream.completions[piece.sequence], piece.sequence // samples), flush=True)
        _say_figures(stream, draft)
        return
    paper = _paper(model, texts, samples, chosen)
    try:
        for piece in stream:
            paper.print(piece)
    except KeyboardInterrupt:
        paper.end_line()
        raise
    _say_what_happened(model, stream.completions)
    if seed is None and is_random:
        note(f"to generate the same text again: --seed {chosen}")
    _say_figures(stream, draft)


def _paper(model: GPT | T5, texts: list[str], samples: int, seed: int) -> Streamed:
    # A GPT continues its prompt, so the text starts with it; a T5 answers.
    starts = [text if isinstance(model, GPT) else "" for text in texts for _ in range(samples)]
    if len(starts) == 1:
        return Streamed(starts)
    headings = [
        f"--- prompt {number} of {len(texts)}" + (f", seed {seed + sample}" if samples > 1 else "")
        for number in range(1, len(texts) + 1)
        for sample in range(samples)
    ]
    return Streamed(starts, headings)


def _say_what_happened(model: GPT | T5, completions: list[Completion]) -> None:
    """Remarks on stderr, never in the text."""
    size = getattr(model.config, "context", None)
    if any(each.slid for each in completions):
        note(f"the context of {size} tokens was full, and its oldest tokens were dropped")
    if any(each.reason == "context full" for each in completions):
        note(f"stopped: the context of {size} tokens is full")


def _say_figures(stream: TextGeneration, draft: ModelDraft | None) -> None:
    if draft is not None:
        note(str(stream.figures))


def _print_gaps(model: BERT, tokenizer: Tokenizer, text: str, *, top: int, as_json: bool, is_first: bool) -> None:
    gaps = fill(model, tokenizer, text, top=top)
    if as_json:
        print(json.dumps({"prompt": text, "gaps": [asdict(gap) for gap in gaps]}, ensure_ascii=False))
        return
    print(("" if is_first else "\n") + text)
    for number, gap in enumerate(gaps, 1):
        name = f"  gap {number}:  " if len(gaps) > 1 else "  "
        print(name + "   ".join(map(_candidate, gap.candidates)))


def _candidate(candidate: Candidate) -> str:
    return f"{candidate.text!r} {100 * candidate.probability:.1f} %"


def _as_json(completion: Completion, prompt: int) -> str:
    return json.dumps({"number": prompt, **asdict(completion)}, ensure_ascii=False)


def _model_and_tokenizer(folder: Path, argument: str) -> tuple[GPT | BERT | T5, Tokenizer]:
    if not folder.is_dir():
        expected = "a run of rearview train, or a folder with config.json and safetensors"
        raise BadArgument(argument, expected=expected, got=f"{folder}, which is not a folder")
    inside = model_folder(folder)
    model = load(inside, device="cuda" if torch.cuda.is_available() else None)
    tokenizer = load_tokenizer(inside)
    if tokenizer.vocab_size > model.config.vocab_size:
        got = f"a tokenizer of {tokenizer.vocab_size} tokens and a model of {model.config.vocab_size}"
        raise BadArgument(argument, expected="a tokenizer and a model of the same vocabulary", got=got)
    return model, tokenizer


def _draft(folder: Path, tokenizer: Tokenizer, *, tokens: int, branches: int) -> ModelDraft:
    model, own = _model_and_tokenizer(folder, "--draft")
    at = first_difference(tokenizer, own)
    if at is not None:
        expected = f"the vocabulary of the model, {tokenizer.vocab_size} {tokenizer.kind}"
        got = f"{own.vocab_size} {own.kind}, which differ from token {at} on"
        raise BadArgument("--draft", expected=expected, got=got, advice="Train both models with the same tokenizer.")
    return ModelDraft(model, tokens=tokens, branches=branches)  # pyright: ignore[reportArgumentType]  # checked there


def _read(text: str) -> str:
    """A prompt; the newline at the end of standard input is not part of it."""
    return sys.stdin.read().removesuffix("\n") if text == "-" else text


def _check_given(given: set[str], applicable: set[str], model: str) -> None:
    """No option is accepted and then ignored."""
    if wrong := sorted(given - applicable):
        raise BadArgument(option_name(wrong[0]), expected=f"options that apply to {model}", got="one that does not")
