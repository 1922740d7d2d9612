"""rearview generate: generate text with a trained model, or fill in masked tokens.

rearview generate book --prompt "To be"
rearview generate bert --prompt "To [MASK] or not to be"
"""

from pathlib import Path
from typing import Annotated

import typer

from rearview.cli.commands import Command, given_options

SAMPLING, ENDING, DRAFT, OUTPUT = "Sampling", "End of the text", "Speculative decoding", "Output"

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def generate(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Run of rearview train, or a folder with config.json.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="Text to continue; - reads standard input. May be repeated."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Largest number of new tokens.", rich_help_panel=ENDING)] = 200,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="String that ends the text. May be repeated.", rich_help_panel=ENDING),
    ] = None,
    when_full: Annotated[
        str,
        typer.Option(
            metavar="slide|stop",
            help="What to do when the context is full: drop its oldest half, or stop.",
            rich_help_panel=ENDING,
        ),
    ] = "slide",
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 is greedy.", rich_help_panel=SAMPLING)
    ] = 1.0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always choose the most probable token.", rich_help_panel=SAMPLING)
    ] = False,
    top_k: Annotated[
        int | None, typer.Option(help="Sample only from the k most probable tokens.", rich_help_panel=SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample only from the most probable tokens whose probabilities add up to this number.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1, tokens that have occurred become less probable.", rich_help_panel=SAMPLING),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of all random numbers. By default a new one, which is printed.", rich_help_panel=SAMPLING
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Number of texts per prompt, with consecutive seeds.", rich_help_panel=SAMPLING)
    ] = 1,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not cache keys and values: the same text, more slowly.")
    ] = False,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Compute the same bits for a sequence alone and in any batch, so that rounding never changes a token.",
        ),
    ] = False,
    draft: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Smaller model with the same vocabulary. It proposes tokens, which the model checks in one pass.",
            rich_help_panel=DRAFT,
        ),
    ] = None,
    draft_tokens: Annotated[
        int, typer.Option(help="Number of tokens that are proposed at a time.", rich_help_panel=DRAFT)
    ] = 5,
    draft_branches: Annotated[
        int,
        typer.Option(help="Number of continuations that are followed; 1 is a chain.", rich_help_panel=DRAFT),
    ] = 1,
    top: Annotated[int, typer.Option(help="Number of candidates per [MASK] of a BERT.", rich_help_panel=OUTPUT)] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per text.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Generate text with a trained model, or fill in its masked tokens.

    A GPT continues the prompt, a T5 answers it, and a BERT fills in each
    [MASK]. The text is printed as it is generated. Several prompts or samples
    are generated together and printed in order.

    With --draft, a smaller model proposes tokens, of which the model keeps
    those that it would have generated. Figures are printed at the end.

    Examples:
    rearview generate book --prompt "To be" --temperature 0.8 --top-k 50
    rearview generate book --prompt "To be" --prompt "Once" --samples 3 --json
    rearview generate book --prompt "To be" --greedy --draft small
    rearview generate bert --prompt "To [MASK] or not to be"
    """
    # Here, so that the help does not wait for torch.
    from rearview.cli.generate_run import run_generate

    run_generate(
        folder, prompt or [""], given_options(ctx), max_tokens=max_tokens, stop=stop or [], when_full=when_full,
        temperature=temperature, greedy=greedy, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
        seed=seed, samples=samples, no_cache=no_cache, batch_invariant=batch_invariant, draft_folder=draft,
        draft_tokens=draft_tokens, draft_branches=draft_branches, top=top, as_json=as_json,
    )  # fmt: skip
