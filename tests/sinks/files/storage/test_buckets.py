"""The buckets that tests use."""

import pytest

from tests.sinks.files.storage.buckets import bucket
from tidemill.sinks.files.storage import parse_storage


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_new_bucket_is_empty_whatever_one_of_its_name_held(turn: str) -> None:
    with bucket() as made:
        assert made.content("") == {}
        filesystem = parse_storage(f"s3://{made.name}?{made.parameters}").filesystem()
        with filesystem.open_output_stream(f"{made.name}/files/{turn}") as stream:
            stream.write(b"left behind")
        assert list(made.content("files")) == [turn]
