"""Each part needs only its own libraries, and none needs the tests."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("spec", "hw", "model", "cosim")

IMPORT_ALL = """
import importlib, pkgutil, sys
part, *blocked = sys.argv[1:]
sys.modules.update(dict.fromkeys(blocked))
package = importlib.import_module(part)
for found in pkgutil.walk_packages(package.__path__, part + "."):
    importlib.import_module(found.name)
"""


def imported(part: str) -> set[str]:
    """First names of every module that a part's files import, also within functions."""
    found: set[str] = set()
    for path in (ROOT / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                found.add((node.module or "").split(".")[0])
    return found


def test_spec_needs_nothing_but_numpy() -> None:
    assert imported("spec") - sys.stdlib_module_names <= {"spec", "numpy"}


@pytest.mark.parametrize(
    ("part", "others"), [("spec", "hw model cosim"), ("hw", "model cosim"), ("model", "hw cosim")]
)
def test_parts_do_not_import_each_other(part: str, others: str) -> None:
    assert not imported(part) & set(others.split())


@pytest.mark.parametrize("part", PARTS)
def test_no_part_imports_the_tests(part: str) -> None:
    assert not imported(part) & {"tests", "pytest", "hypothesis"}


@pytest.mark.parametrize(
    ("part", "blocked"),
    [
        ("spec", "torch sklearn amaranth cocotb click rich"),
        ("hw", "torch sklearn cocotb"),
        ("model", "amaranth cocotb"),
    ],
)
def test_a_part_works_without_the_libraries_of_the_others(part: str, blocked: str) -> None:
    command = [sys.executable, "-c", IMPORT_ALL, part, *blocked.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
