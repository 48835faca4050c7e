"""A scikit-learn-like front: ``CARLG().fit(data).transform(data)``."""

from typing import Any

from torch import Tensor

from carlg.config import Config, ConfigError, recipe
from carlg.graph import Graph, from_data
from carlg.propagation import Inputs, near_neighbours
from carlg.run import make_trainer
from carlg.scaling import Scaling


class CARLG:
    """Node embeddings of a torch_geometric ``Data`` (or :class:`carlg.Graph`) without labels.

    Parameters
    ----------
    **settings
        Any field of :class:`carlg.Config`, such as ``variant``, ``seed``, ``epochs``, ``clusters``.

    Attributes
    ----------
    encoder_ : Encoder
    labels_ : Tensor, shape (n,)
        Clusters of the kept encoder, -1 where no mini-batch had reached a node; None where it was never clustered.
    history_ : list of Epoch
    scaling_ : Scaling
        How the features were scaled; :meth:`transform` scales by the same numbers.

    Notes
    -----
    Features that were not scaled yet, of a ``Data`` or a ``Graph``, are scaled as the setting ``features`` says; a graph from
    :func:`carlg.load` or ``with_features`` is taken as it is.

    Examples
    --------
    >>> graph = carlg.load("sbm", nodes=200)
    >>> carlg.CARLG(epochs=3).fit(graph).transform(graph).shape
    torch.Size([200, 256])
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.config: Config = recipe(**settings)
        if self.config.select == "validation":
            raise ConfigError("select validation needs labels; the estimator looks at none, use carlg.train")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return dict(self.settings)

    def set_params(self, **settings: Any) -> "CARLG":
        self.__init__(**{**self.settings, **settings})  # type: ignore[misc]
        return self

    def fit(self, data: Any, y: Any = None, loader: Any = None) -> "CARLG":
        """Train on the whole graph, or on the batches of a torch_geometric ``loader`` that names their nodes (``n_id``)."""
        graph = _as_graph(data).with_features(self.config.features)
        trainer = make_trainer(graph, self.config, loader)
        self.encoder_ = trainer.run()
        self.labels_, self.history_ = trainer.kept_labels, trainer.history
        self.scaling_ = graph.scaling or Scaling("none")
        return self

    def transform(self, data: Any) -> Tensor:
        """Embeddings (n, d) of this or another graph with the same features."""
        if not hasattr(self, "encoder_"):
            raise ConfigError("fit comes before transform")
        device = self.encoder_.layers[0].weight.device
        graph = _as_graph(data).with_features(self.scaling_)
        return self.encoder_.embed(Inputs(graph, device, near_neighbours(graph))).cpu()

    def fit_transform(self, data: Any, y: Any = None, loader: Any = None) -> Tensor:
        return self.fit(data, loader=loader).transform(data)


def _as_graph(data: Any) -> Graph:
    return data if isinstance(data, Graph) else from_data(data)
