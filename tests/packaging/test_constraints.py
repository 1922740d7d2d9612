"""The pinned environment of constraints.txt: `make setup` installs it on every Python that the package promises."""

import re
from importlib.metadata import Distribution, distributions

from packaging.specifiers import SpecifierSet

from tests.docs.markdown import ROOT

# The oldest Python of `requires-python`, as distributions keep it for years: a pin may not ask for a later patch.
OLDEST = "3.11.0"
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))


def refuses(found: Distribution, python: str) -> bool:
    return not SpecifierSet(found.metadata["Requires-Python"] or "").contains(python)


def test_every_pin_installs_on_the_oldest_python():
    assert f'requires-python = ">={OLDEST.removesuffix(".0")}"' in (ROOT / "pyproject.toml").read_text()
    # Other versions than the pinned ones are installed where the newest are tested.
    pinned = [found for found in distributions() if PINS.get(found.name) == found.version]
    assert {f"{found.name}=={found.version}" for found in pinned if refuses(found, OLDEST)} == set()


def test_a_pin_that_refuses_is_found():
    (torch,) = (found for found in distributions() if found.name == "torch")
    assert refuses(torch, "3.6.0")
    assert not refuses(torch, OLDEST)
