"""rearview generate: let a trained model write, answer, or fill in.

rearview generate book --prompt "To be"
rearview generate bert --prompt "To [MASK] or not to be"
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from rearview.cli import READER_GONE
from rearview.cli.streaming import Streamed
from rearview.errors import BadArgument
from rearview.generation import Candidate, Completion, fill, stream_text
from rearview.models import BERT, GPT, T5
from rearview.models.checkpoint import load
from rearview.text import Tokenizer, load_tokenizer
from rearview.training.checkpoint.folders import model_folder

CHOOSING, ENDING, OUTPUT = "Choosing a token", "Coming to an end", "Output"
# What says something to a BERT.
FOR_BERT = {"folder", "prompt", "top", "as_json"}


def generate(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run of rearview train, or a folder with config.json.")
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="Where to go on from; - is the standard input. May be given again."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens, at most.", rich_help_panel=ENDING)] = 200,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="A string that ends the text; may be given again.", rich_help_panel=ENDING),
    ] = None,
    when_full: Annotated[
        str,
        typer.Option(
            metavar="slide|stop",
            help="A full context: let its oldest half slide out, or stop.",
            rich_help_panel=ENDING,
        ),
    ] = "slide",
    temperature: Annotated[
        float, typer.Option(help="Above 1 bolder, below 1 safer, 0 greedy.", rich_help_panel=CHOOSING)
    ] = 1.0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the most probable token.", rich_help_panel=CHOOSING)
    ] = False,
    top_k: Annotated[
        int | None, typer.Option(help="Only the k most probable tokens.", rich_help_panel=CHOOSING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Only the most probable tokens that reach this share.", rich_help_panel=CHOOSING),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1, what was said becomes less probable.", rich_help_panel=CHOOSING)
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed, the same text.", rich_help_panel=CHOOSING)] = 0,
    samples: Annotated[
        int, typer.Option(help="Texts for each prompt, with seeds that count up.", rich_help_panel=CHOOSING)
    ] = 1,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read everything again for each token: same text, slower.")
    ] = False,
    top: Annotated[int, typer.Option(help="Candidates for each [MASK] of a BERT.", rich_help_panel=OUTPUT)] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a line for each text.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Let a trained model write: a GPT goes on from the prompt, a T5 answers it, a BERT fills in each [MASK].

    The text is printed as it comes. Several prompts, or samples, are written together and printed in their order.

    Examples:
    rearview generate book --prompt "To be" --temperature 0.8 --top-k 50
    rearview generate book --prompt "To be" --prompt "Once" --samples 3 --json
    rearview generate bert --prompt "To [MASK] or not to be"
    """
    given = {name for name in context.params if _was_given(context, name)}
    if greedy and "temperature" in given:
        raise BadArgument("--greedy", expected="either --greedy or --temperature", came="both")
    texts = [_read(text) for text in prompt or [""]]
    model, tokenizer = _model_and_tokenizer(folder)
    if isinstance(model, BERT):
        _check_given(given, FOR_BERT, "a BERT, which fills in [MASK]s")
        for number, text in enumerate(texts):
            _print_gaps(model, tokenizer, text, top=top, as_json=as_json, is_first=number == 0)
        return
    _check_given(given, set(context.params) - {"top"}, "a model that generates; it is for a BERT")
    stream = stream_text(
        model,
        tokenizer,
        texts,
        max_new_tokens=max_tokens,
        samples=samples,
        stop=stop or (),
        seed=seed,
        temperature=0 if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        use_cache=False if no_cache else None,
        when_full=when_full,
    )
    if as_json:
        for piece in stream:
            if piece.reason is not None:
                print(_as_json(stream.completions[piece.sequence], piece.sequence // samples), flush=True)
        return
    paper = _paper(model, texts, samples, seed)
    try:
        for piece in stream:
            paper.print(piece)
    except KeyboardInterrupt:
        paper.end_line()
        raise
    except BrokenPipeError:
        # Typer would call it an error; `run` sees that the reader has left, as for every command.
        raise typer.Exit(READER_GONE) from None
    _say_what_happened(model, stream.completions)


def _paper(model: GPT | T5, texts: list[str], samples: int, seed: int) -> Streamed:
    # A GPT goes on from its prompt, so the text starts with it; a T5 answers.
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
    """Notes for people, beside the text and never in it."""
    size = getattr(model.config, "context", None)
    if any(each.slid for each in completions):
        print(f"rearview: the context of {size} tokens was full; the oldest slid out of it.", file=sys.stderr)
    if any(each.reason == "context full" for each in completions):
        print(f"rearview: stopped, the context of {size} tokens is full.", file=sys.stderr)


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


def _model_and_tokenizer(folder: Path) -> tuple[GPT | BERT | T5, Tokenizer]:
    if not folder.is_dir():
        expected = "a run of rearview train, or a folder with config.json and safetensors"
        raise BadArgument("DIR", expected=expected, came=f"{folder}, which is not a folder")
    inside = model_folder(folder)
    model = load(inside, device="cuda" if torch.cuda.is_available() else None)
    tokenizer = load_tokenizer(inside)
    if tokenizer.vocab_size > model.config.vocab_size:
        came = f"a tokenizer of {tokenizer.vocab_size} tokens and a model of {model.config.vocab_size}"
        raise BadArgument("DIR", expected="a tokenizer and a model that belong together", came=came)
    return model, tokenizer


def _read(text: str) -> str:
    """A prompt; the newline that ends the standard input is not part of it."""
    return sys.stdin.read().removesuffix("\n") if text == "-" else text


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_given(given: set[str], meaningful: set[str], to_whom: str) -> None:
    """No option is accepted and then ignored."""
    if wrong := sorted(given - meaningful):
        name = "--" + wrong[0].replace("_", "-")
        raise BadArgument(name, expected="an option that says something", came=f"one that does not, to {to_whom}")
