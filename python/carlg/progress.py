"""Progress of a run on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
from typing import Any


class Progress:
    """Shows loss, index, churn, rank and the time left."""

    def __init__(self, total: int, done: int, quiet: bool) -> None:
        self.bar = None
        self.quiet = quiet
        self.total = total
        if not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, initial=done, unit="epoch", dynamic_ncols=True)

    def update(self, record: Any) -> None:
        text = f"loss {record.loss:.4f} index {record.index:.4g} churn {record.churn:.3f} rank {record.rank:.1f}"
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update()
        elif not self.quiet and (record.epoch % 10 == 0 or record.epoch == 1):
            print(f"epoch {record.epoch}/{self.total} {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
