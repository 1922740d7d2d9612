"""Real bugs, each rebuilt in a few lines as a model that leaks, with its fix. `docs/gallery.md` shows them.

Each module has a title, a description, and functions `leaks()` and `fixed()` that audit the two models. `PLACE` is the
path of the module that leaks, and a comment `here` marks the line.
"""

import importlib
import pkgutil
from types import ModuleType


def cases() -> list[ModuleType]:
    """The modules of the gallery, in the order of the page."""
    names = [found.name for found in pkgutil.iter_modules(__path__) if found.name[1] == "_" != found.name[0]]
    return [importlib.import_module(f"{__name__}.{name}") for name in sorted(names)]
