"""TensorBoard events of a run, where tensorboard is installed."""

import pathlib
from typing import Any


class EventLog:
    """Scalars of every epoch under ``out/events``; a resumed run drops what came after its checkpoint."""

    def __init__(self, folder: pathlib.Path | None, first: int) -> None:
        self.writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.writer = SummaryWriter(str(folder / "events"), purge_step=first + 1 if first else None)

    def write(self, record: Any) -> None:
        if self.writer is None:
            return
        for name in ("loss", "index", "churn", "rank", "clusters", "lr", "seconds"):
            self.writer.add_scalar(name, getattr(record, name), record.epoch)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
