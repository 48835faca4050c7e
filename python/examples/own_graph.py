"""Embed a torch_geometric ``Data`` of your own with the scikit-learn-like estimator."""

import torch
from torch_geometric.data import Data

import carlg

generator = torch.Generator().manual_seed(0)
groups = torch.arange(300) % 3
x = torch.eye(3)[groups] + 0.7 * torch.randn(300, 3, generator=generator)
source = torch.randint(300, (3000,), generator=generator)
target = torch.randint(300, (3000,), generator=generator)
same = groups[source] == groups[target]
graph = Data(x=x, edge_index=torch.stack([source[same], target[same]]))

embeddings = carlg.CARLG(variant="vrc", seed=0).fit_transform(graph)
print(tuple(embeddings.shape))
