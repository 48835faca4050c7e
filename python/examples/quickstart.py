"""Train on the bundled digits, look at the figures: ``python python/examples/quickstart.py``."""

import carlg

run = carlg.train(dataset="digits", variant="sim", seed=0, splits=5)
print(f"stopped: {run.metrics['stopped']}")
print(f"accuracy {run.metrics['accuracy_mean']:.4f}, untrained encoder {run.metrics['random_init']['accuracy_mean']:.4f}")
print(f"embeddings {tuple(run.embeddings.shape)}")
