"""What `import carlg` offers is the same whatever was imported before."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, carlg
if {first}:
    importlib.import_module("carlg.run"), importlib.import_module("carlg.evaluate")
before = {{name: getattr(carlg, name) for name in carlg.__all__}}
import carlg.run, carlg.evaluate
from carlg.evaluate import classify
from carlg import evaluate
assert evaluate is before["evaluate"] and sys.modules["carlg.evaluate"].classify is classify
for name, value in before.items():
    assert callable(value) and getattr(carlg, name) is value, name
"""


@pytest.mark.parametrize("first", [False, True])
def test_names_are_the_same_objects_before_and_after_imports(first):
    subprocess.run([sys.executable, "-c", "import sys" + PROGRAM.format(first=first)], check=True)
