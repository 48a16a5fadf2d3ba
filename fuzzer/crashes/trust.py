"""Which crashes run code that came with them."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from pathlib import Path

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash, seed_of
from fuzzer.seeds import Seed
from fuzzer.seeds.stages import whole


def needs_trust(crash: Crash, project: Path) -> str | None:
    """Why replaying `crash` asks for trust, or None: its seed runs Python code that is not the project's own.

    The project's own is a function or class defined in a file under the folder `project`, outside installed packages
    and outside crash folders: a crash that was copied in from elsewhere must not bring its code along. A name that the
    file only imports does not count, because the seed chooses the arguments too (`model:os.system`). Models of
    installed libraries and ONNX files run no code of the crash's; a `.pt2` file can. An interpreter that a crash names
    is a program that it chooses. Nothing is imported to find out.
    """
    for text in (crash.reference, crash.target):
        python = BackendSpec.parse(text).python
        if python:
            return f"it runs the program {python}"
    seed = whole(seed_of(crash))
    spec = seed.model
    if spec.source == "exported":
        return foreign_program(seed, project)
    folder: Path | None = None
    if spec.source == "hub":
        if spec.path is None:
            return f"its seed runs code of {spec.repo} from torch.hub"
        name, attribute, folder = "hubconf", str(spec.name), seed.path(spec.path)
    elif spec.builder is not None and spec.source in ("builder", "repo"):
        name, _, attribute = spec.builder.partition(":")
        folder = None if spec.path is None else seed.path(spec.path)
    else:
        return None
    found = _file(name, folder)
    if found is None:
        return f"its seed imports {name}, which is not a file of this project"
    root = project.resolve()
    if not found.is_relative_to(root):
        return f"its seed imports Python code from {found}, which is outside {root}"
    inside = found.relative_to(root).parts
    if "site-packages" in inside or "dist-packages" in inside:
        return f"its seed imports the installed package {name}"
    if any((folder / "crash.yaml").exists() for folder in found.parents if folder.is_relative_to(root)):
        return f"its seed imports Python code from a crash's folder, {found.parent}"
    if attribute not in _defined(found):
        return f"its seed calls {attribute}, which {found} does not define itself"
    return None


def foreign_program(seed: Seed, project: Path) -> str | None:
    """Why reading the seed's `.pt2` file asks for trust, or None: it can run code, and is not the project's own."""
    seed = whole(seed)
    if seed.model.source != "exported" or seed.model.path is None:
        return None
    path, root = seed.path(seed.model.path), project.resolve()
    if not path.is_relative_to(root):
        return f"its seed reads {path}, which can run code and is outside {root}"
    if any((folder / "crash.yaml").exists() for folder in path.parents if folder.is_relative_to(root)):
        return f"its seed reads {path}, which can run code and lies in a crash's folder"
    return None


def _file(name: str, folder: Path | None) -> Path | None:
    """The file that importing `name` runs, links followed: from `folder`, else from where Python finds modules.

    None where there is none, or where a module of that name is loaded from elsewhere and would be taken instead.
    """
    if folder is not None:
        own = folder / f"{name}.py"
        if own.is_file():
            return own.resolve()
    top, *rest = name.split(".")
    spec = None if folder is None else importlib.machinery.PathFinder.find_spec(top, [str(folder)])
    spec = spec or importlib.machinery.PathFinder.find_spec(top)
    if spec is None or spec.origin is None or top in sys.stdlib_module_names:
        return None
    origin = Path(spec.origin).resolve()
    loaded = sys.modules.get(top)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() != origin:
        return None
    if not rest:
        return origin
    inner = origin.parent.joinpath(*rest)
    file = next((path for path in (inner / "__init__.py", inner.with_suffix(".py")) if path.is_file()), None)
    return None if file is None else file.resolve()


def _defined(file: Path) -> set[str]:
    """The functions and classes at the top level of a Python file; none where it cannot be parsed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}
