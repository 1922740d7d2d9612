"""The hooks of the build: the CPU kernel goes into the wheel where it compiles, and the readme gets absolute links.

REARVIEW_NATIVE in the environment: 0 leaves it out, `require` fails the build when it does not compile. Otherwise an
installation without a compiler is one without the engine `native`, and says so.
"""

import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class NativeKernel(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root).resolve()
        native = _native_build(root)
        inside = native.LIBRARY.parent.relative_to(root / "src").as_posix()
        # A wheel can be made of a tree that is only there to be read; hatchling wants its files until it is done.
        if version == "standard" and not os.access(root, os.W_OK):
            self.elsewhere = tempfile.TemporaryDirectory()
            native.move_out(Path(self.elsewhere.name))
        failure = native.install()
        if failure:
            self.app.display_warning(f"rearview is installed without its CPU kernel (engine 'native'): {failure}")
        # An editable installation reads the source tree, where the file already is.
        if version == "standard":
            files = [native.NOT_BUILT] if failure else [native.LIBRARY, native.checksum_file(native.LIBRARY)]
            build_data["force_include"].update({str(file): f"{inside}/{file.name}" for file in files})
        if not failure:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            # No part of Python's own interface is used: one wheel for every Python of this platform.
            build_data["tag"] = f"py3-none-{platform}"


class Readme(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        url = metadata["urls"]["Homepage"]
        # Pictures first: a browser needs the file itself, and not the page about it.
        relative = r"(?=[\w.][\w./-]*(?:#[\w-]*)?[)\"])"
        text = re.sub(rf'(<img src="|!\[[^]]*\]\(){relative}', rf"\1{url}/raw/main/", text)
        text = re.sub(rf'(<a href="|\]\(){relative}', rf"\1{url}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _native_build(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("rearview_native_build", root / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
