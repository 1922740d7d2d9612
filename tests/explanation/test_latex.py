"""LaTeX: it compiles if LaTeX is installed, it is well-formed, and labels are escaped."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rearview import RearviewError, explain
from rearview.explanation.latex import in_text, to_latex
from tests.explanation.traces import HEADS, NASTY, TRACES, numbers, restaurant

# The escapes of characters, longest first, to read them back.
SIGNS = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textasciigrave{}": "`",
    r"\textquotedbl{}": '"', r"\textless{}": "<", r"\textgreater{}": ">", r"\textbar{}": "|",
    r"\textvisiblespace{}": "␣", r"\ensuremath{\infty}": "∞", r"\{": "{", r"\}": "}", r"\$": "$", r"\&": "&",
    r"\#": "#", r"\%": "%", r"\_": "_", "{[}": "[", "{}": "",
}  # fmt: skip


def read(latex: str) -> str:
    """Escaped text, read back."""
    known = "|".join(map(re.escape, SIGNS))
    return re.sub(known, lambda sign: SIGNS[sign[0]], latex)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a_b & c", r"a\_b \& c"),
        ("100 % #1", r"100 \% \#1"),
        ("{x}", r"\{x\}"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("$5", r"\$5"),
        ("-∞", r"-\ensuremath{\infty}"),
        ("--- ,, ''", "-{}-{}- ,{}, '{}'"),
        ("[x]", "{[}x]"),
        ("a\nb", r"a\textbackslash{}nb"),
        ("␣love — 1", r"\textvisiblespace{}love — 1"),
    ],
)
def test_every_character_is_escaped(text: str, latex: str):
    assert in_text(text) == latex
    assert read(latex) == text.replace("\n", "\\n")


def balanced(document: str) -> None:
    """Environments and braces are closed in the order in which they were opened."""
    body = re.sub(r"(?<!\\)%.*", "", document)
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert open_environments == []
    depth = 0
    for brace in re.findall(r"\\[\\{}]|[{}]", body):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        assert depth >= 0
    assert depth == 0
    assert body.count(r"\[") == body.count(r"\]")


@pytest.mark.parametrize(("name", "head"), HEADS)
def test_the_document_is_well_formed(name: str, head: int):
    trace = TRACES[name]()
    document = trace.to_latex(head)
    balanced(document)
    assert document.index(r"\documentclass{article}") < document.index(r"\begin{document}")
    assert document.endswith("\\end{document}\n")
    # One display per stage, and two more where there is a difference: weights, output, projected.
    compared = sum(stage.key in ("weights", "output", "projected") for stage in trace.stages)
    assert document.count(r"\bordermatrix{") == len(trace.stages) + 2 * compared
    for stage in trace.stages:
        assert rf"\subsection*{{${stage.latex}$}}" in document
        assert in_text(stage.sentence) in document.splitlines()


def test_a_matrix_as_it_is_written():
    document = restaurant().to_latex()
    lines = document.splitlines()
    start = lines.index(r"\fit{S + M = \bordermatrix{")
    assert lines[start - 1 : start + 8] == [
        r"\[",
        r"\fit{S + M = \bordermatrix{",
        r" & \text{Frank} & \text{Emma} & \text{Daniel} & \text{Alex} \cr",
        r"\text{Frank} & 21.891 & -\infty & -\infty & -\infty \cr",
        r"\text{Emma} & 6.276 & 2.297 & -\infty & -\infty \cr",
        r"\text{Daniel} & 5.079 & 2.479 & 4.166 & -\infty \cr",
        r"\text{Alex} & 11.563 & 3.810 & 4.425 & 6.468 \cr",
        "}}",
        r"\]",
    ]
    assert r"\item Emma — 98.2 \% Frank, 1.8 \% herself" in lines
    assert r"Mask: \texttt{causal()}. 4 queries, 4 keys." in lines
    assert r"\section*{Four people recommend a restaurant, one after the other}" in lines


def test_the_head_is_named():
    trace = TRACES["a_layer"]()
    assert r"Mask: \texttt{causal() \& window(3)}. 6 queries, 6 keys, head 2 of 4." in trace.to_latex(2)
    assert trace.to_latex(0) != trace.to_latex(2)
    assert r"\section*{A layer \& 100 \% of \{it\}}" in trace.to_latex()


def test_labels_are_read_back_as_they_were():
    document = TRACES["a_layer"]().to_latex()
    display = document[document.index(r"\fit{X = ") :]
    words = re.findall(r"^\\text\{(.*?)\} & ", display[: display.index("\n}}")], re.MULTILINE)
    assert [read(word) for word in words] == [w.replace(" [", "␣[").replace("\n", "\\n") for w in NASTY]


def test_displays_to_paste_have_the_chosen_stages_and_decimals():
    trace = restaurant()
    assert trace.to_latex(stages=["masked"], decimals=1, document=False).splitlines() == [
        r"\[",
        r"S + M = \bordermatrix{",
        r" & \text{Frank} & \text{Emma} & \text{Daniel} & \text{Alex} \cr",
        r"\text{Frank} & 21.9 & -\infty & -\infty & -\infty \cr",
        r"\text{Emma} & 6.3 & 2.3 & -\infty & -\infty \cr",
        r"\text{Daniel} & 5.1 & 2.5 & 4.2 & -\infty \cr",
        r"\text{Alex} & 11.6 & 3.8 & 4.4 & 6.5 \cr",
        "}",
        r"\]",
    ]
    pasted = trace.to_latex(stages=["weights"], document=False)
    assert pasted.count(r"\bordermatrix{") == 3
    assert set(re.findall(r"\\(\w+)", pasted)) == {"bordermatrix", "text", "cr"}
    only = trace.to_latex(stages=["weights"])
    assert only.count(r"\subsection*{$") == 1
    assert r"\item Emma" in only
    with pytest.raises(RearviewError, match=r"^decimals: expected an integer from 1 to 17, got 0\.$"):
        trace.to_latex(decimals=0)
    with pytest.raises(RearviewError, match=r"^stage: expected one of q, k, v, "):
        trace.to_latex(stages=["nothing"], document=False)


LATEX = shutil.which("pdflatex")


@pytest.mark.skipif(LATEX is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("name", ["restaurant", "a_layer", "heads_of_their_own", "wide"])
def test_it_compiles(name: str, tmp_path: Path):
    count = 30
    trace = (
        TRACES[name]()
        if name != "wide"
        else explain(query=numbers(count, 2), key=numbers(count, 2), value=numbers(count, 2), positions="rotary")
    )
    (tmp_path / "trace.tex").write_text(to_latex(trace), encoding="utf-8")
    assert LATEX is not None
    command = [LATEX, "-draftmode", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "trace.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert "Missing character" not in (tmp_path / "trace.log").read_text(errors="replace")
