"""torch.library.opcheck for every operator that is registered: one without samples fails."""

import pytest
import torch

from carlg_kernels._library import OPS
from tests.samples import samples


def test_every_op_has_samples():
    assert set(OPS) == set(samples())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["fp32", "fp64", "bf16"])
@pytest.mark.parametrize("name", sorted(OPS))
def test_opcheck(name, dtype):
    op = getattr(torch.ops.carlg_kernels, name).default
    for args in samples(dtype)[name]:
        torch.library.opcheck(op, args)


@pytest.mark.parametrize("name", sorted(OPS))
def test_compiled_kernels_serve_every_op_that_claims_them(name):
    if "cpu" not in OPS[name].backends.get("cpp", ()):
        pytest.skip(f"{name} has no C++ CPU kernel")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"carlg_kernels::{name}", "CPU")
