"""What `import carlg` offers is the same whatever was imported before: no name of it is also a submodule."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, carlg
before = {name: getattr(carlg, name) for name in carlg.__all__}
for module in pkgutil.iter_modules(carlg.__path__):
    if module.name != "__main__":
        importlib.import_module("carlg." + module.name)
for name, value in before.items():
    assert callable(value) and getattr(carlg, name) is value, name
"""


def test_names_are_the_same_objects_before_and_after_imports():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
