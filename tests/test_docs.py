"""The samples on the pages of docs/ run as they are printed."""

import pathlib
import re

import pytest

pytest.importorskip("sklearn")
DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_samples_run(page):
    samples = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    if not samples:
        pytest.skip("no samples")
    exec(compile("\n".join(samples), page, "exec"), {})
