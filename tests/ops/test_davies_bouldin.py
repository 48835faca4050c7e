import torch

import carlg_kernels as ck
from tests import definitions
from tests.helpers import assert_close, clustered, compare, dtypes, shapes


@shapes
@dtypes
def test_value_and_gradient(shape, dtype):
    z, labels = clustered(*shape)
    compare("index", lambda x: definitions.davies_bouldin(x, labels), lambda x: ck.davies_bouldin(x, labels), dtype, z)


def test_coinciding_centroids_score_zero():
    z = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], requires_grad=True)
    value = ck.davies_bouldin(z, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0 and (z.grad == 0).all()


def test_points_on_their_centroids_have_a_finite_gradient():
    z = torch.tensor([[0.0], [0.0], [1.0], [1.0]], requires_grad=True)
    value = ck.davies_bouldin(z, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0 and torch.isfinite(z.grad).all()


def test_unknown_number_of_clusters_gives_the_same_bits():
    z, labels = clustered(900, 12, 20)
    op, back = torch.ops.carlg_kernels.davies_bouldin, torch.ops.carlg_kernels.davies_bouldin_backward
    known, unknown = (op(z, labels, c) for c in (12, 0))
    assert torch.equal(known[0], unknown[0])
    a, b = (back(torch.tensor(2.0), z, labels, *s[1:]) for s in (known, unknown))
    assert_close("gradient", a, b, 1e-6)
