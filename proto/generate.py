"""Writes src/tidemill/_pb/ from the .proto files beside this script.

    python proto/generate.py

The generated modules are committed, so that using Tidemill needs no compiler. Every file there
but ``__init__.py`` is replaced.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
PROTOS = ROOT / "tidemill" / "_pb"
OUT = ROOT.parent / "src"

TITLE = '''"""Generated from proto/tidemill/_pb by proto/generate.py. Do not edit; edit the .proto files.

The subset of TiKV's and PD's protocol that Tidemill speaks, under the real package names, method
paths and field numbers, so that the real servers and clients understand it.
"""
'''


def main() -> int:
    package = OUT / "tidemill" / "_pb"
    package.mkdir(parents=True, exist_ok=True)
    for old in [*package.glob("*_pb2*.py"), *package.glob("*.pyi")]:
        old.unlink()
    (package / "__init__.py").write_text(TITLE)
    sources = sorted(str(path) for path in PROTOS.glob("*.proto"))
    services = [path for path in sources if "\nservice " in Path(path).read_text()]
    common = ["protoc", f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    status = protoc.main([*common, f"--python_out={OUT}", f"--pyi_out={OUT}", *sources])
    return int(status or protoc.main([*common, f"--grpc_python_out={OUT}", *services]))


if __name__ == "__main__":
    sys.exit(main())
