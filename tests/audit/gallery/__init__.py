"""Real bugs, each rebuilt in a few lines as a model that leaks and its fix. `docs/gallery.md` shows them.

A module has a title and a sentence, `leaks()` and `fixed()`, which audit the two, and where the leak is: `PLACE` is the
module, and `here` stands in a comment on the line.
"""

import importlib
import pkgutil
from types import ModuleType


def cases() -> list[ModuleType]:
    """The modules of the gallery, in the order of the page."""
    names = [found.name for found in pkgutil.iter_modules(__path__) if found.name[1] == "_" != found.name[0]]
    return [importlib.import_module(f"{__name__}.{name}") for name in sorted(names)]
