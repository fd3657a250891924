"""Plain models, one value at a time, that fast code is compared with."""
