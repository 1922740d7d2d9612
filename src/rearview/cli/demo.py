"""rearview demo: masked attention step by step, computed as you watch.

rearview demo
"""

from rich.text import Text

from rearview.cli.terminal import console, show
from rearview.explain.examples import FOUR_SPEAKERS
from rearview.masks import causal


def demo() -> None:
    """Masked attention step by step: four speakers, each of whom can only look back."""
    paper = console()
    paper.print(Text("Masked attention: only look back", style="bold"))
    paper.print("Each may draw on those who spoke before, and on themselves.\n")
    show(FOUR_SPEAKERS.trace().show())
    paper.print(Text("\nThe same rule over words", style="bold"))
    paper.print("To predict the word after love, a model may use I and love; the answer is not there to be read.\n")
    show(causal().show("I love ___"))
    paper.print(Text("\nNext", style="bold"))
    paper.print("  rearview explain restaurant --out restaurant.html    the same as a page to step through")
    paper.print("  rearview explain                                     other examples, and your own matrices")
    paper.print('  rearview mask "causal() & window(3)" --tokens "I love sushi very much"')
