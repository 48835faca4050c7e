"""Plain torch, one file an op: the definitions that tests trust, and the fallback where no kernel serves the device."""
