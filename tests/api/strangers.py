"""What has to hold of an answer to a request that nobody has thought of."""

import json

_NOT_NOW = 503  # a refusal: not ready, no owner yet, an upstream that does not answer


def not_broken(where: str, status: int, text: str) -> None:
    """No 5xx but "not now", and each refusal has TiCDC's shape."""
    assert status < 500 or status == _NOT_NOW, f"{where}: {status} {text}"
    if status >= 400:
        refusal = json.loads(text)
        assert set(refusal) == {"error_msg", "error_code"}, f"{where}: {text}"
        assert refusal["error_code"].startswith("CDC:Err"), f"{where}: {text}"
