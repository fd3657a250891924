"""JSON strings as Go's encoders write them, so that our documents equal TiCDC's byte for byte."""

import orjson

_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_SHORT = {ord("\b"): "\\u0008", ord("\f"): "\\u000c"}


def quoted(text: str) -> str:
    """``text`` as a JSON string: ``<``, ``>``, ``&`` and the two line separators are escaped too."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    # orjson writes \b and \f in their short form; a Go encoder spells them out.
    parts = [_encode(part) for part in _split(plain)]
    return '"' + "".join(parts) + '"'


def _split(text: str) -> list[str]:
    parts = [""]
    for char in text:
        if char in "\b\f":
            parts += [char, ""]
        else:
            parts[-1] += char
    return [part for part in parts if part]


def _encode(part: str) -> str:
    if part in ("\b", "\f"):
        return _SHORT[ord(part)]
    return orjson.dumps(part).decode()[1:-1].translate(_HTML)
