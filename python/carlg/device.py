"""Devices by name."""

import torch

from carlg.config import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device that a setting names; ConfigError lists what there is where it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        # What a backend raises where it is missing is up to the backend.
        usable = device.type != "meta" and float(torch.zeros(1, device=device)) == 0
    except Exception:
        usable = False
    if not usable:
        there = ["auto", "cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise ConfigError(f"device must be one of {', '.join(there)} on this machine, got {name!r}")
    return device
