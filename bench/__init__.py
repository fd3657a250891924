"""Benchmarks: ``python -m bench [--only PREFIX]``, from the root of the repository.

Each module has one function that measures and returns what it measured; ``__main__`` runs them, prints
a table and writes ``bench/results.json``. ``data`` makes big histories of the small recorded ones.
"""
