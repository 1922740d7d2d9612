"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import rearview

# A `__main__` starts the program when it is imported.
MODULES = [
    "rearview",
    *(
        module.name
        for module in pkgutil.walk_packages(rearview.__path__, prefix="rearview.")
        if not module.name.endswith("__main__")
    ),
]
# What FlexAttention says to whoever runs it uncompiled, as an example may.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != "triton":
            raise
        pytest.skip("Triton is not installed")
    # In the order in which they are read, each with names of its own, as `python -m doctest` does.
    examples = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for test in sorted(examples, key=lambda test: test.lineno or 0):
        runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_examples_are_found():
    """A finder that finds nothing would make the test above pass."""
    for name in ("rearview.masks.families", "rearview.attention.functional"):
        found = doctest.DocTestFinder().find(importlib.import_module(name))
        # At the top of the module, and in the functions.
        assert len([test for test in found if test.examples]) >= 2
