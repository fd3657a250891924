"""Which key of etcd holds what: TiCDC's, so that its tools find what they know, and ours, outside of its folder.

/tidb/cdc/{cluster}/__cdc_meta__/owner/{lease}           capture id; the oldest is the owner   (lease)
                                /capture/{capture}       CaptureInfo                           (lease)
                                /meta/meta-version       1
/tidb/cdc/{cluster}/{namespace}/changefeed/info/{id}     ChangeFeedInfo
                               /changefeed/status/{id}   ChangeFeedStatus
/tidemill/cdc/{cluster}/capture/{capture}                where other captures reach it         (lease)
/tidemill/cdc/{cluster}/{namespace}/changefeed/name/{id}         its random name in the world
                                   /changefeed/state/{id}        the state of its owner
                                   /changefeed/part/{id}/…       of a state too large for one value
"""

import re
from dataclasses import dataclass

from tidemill.errors import UsageError
from tidemill.model.schedule import CaptureId, ChangefeedKey

DEFAULT_CLUSTER = "default"
DEFAULT_NAMESPACE = "default"
META_VERSION = b"1"

_NAME = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_LONGEST_NAME = 128
_RESERVED = {"owner", "capture", "task", "changefeed", "job", "meta"}  # they were part of keys without a cluster


def check_name(text: str, what: str) -> str:
    """Of a cluster, a namespace or a changefeed, by TiCDC's rule. Raises UsageError."""
    if len(text) > _LONGEST_NAME or _NAME.fullmatch(text) is None:
        raise UsageError(
            f"{what} {text[:_LONGEST_NAME]!r} cannot be: it has 1 to {_LONGEST_NAME} letters and digits, and single "
            "hyphens between them."
        )
    return text


@dataclass(frozen=True, slots=True)
class Keys:
    cluster: str = DEFAULT_CLUSTER

    def __post_init__(self) -> None:
        check_name(self.cluster, "cluster-id")
        if self.cluster in _RESERVED:
            raise UsageError(f"cluster-id {self.cluster!r} is reserved. Choose another one.")

    @property
    def base(self) -> str:
        return f"/tidb/cdc/{self.cluster}"

    @property
    def ours(self) -> str:
        return f"/tidemill/cdc/{self.cluster}"

    @property
    def owners(self) -> str:
        return f"{self.base}/__cdc_meta__/owner/"

    def owner(self, lease: int) -> str:
        return f"{self.owners}{lease:x}"

    @property
    def captures(self) -> str:
        return f"{self.base}/__cdc_meta__/capture/"

    def capture(self, capture: CaptureId) -> str:
        return f"{self.captures}{capture}"

    @property
    def meta_version(self) -> str:
        return f"{self.base}/__cdc_meta__/meta/meta-version"

    @property
    def places(self) -> str:
        return f"{self.ours}/capture/"

    def place(self, capture: CaptureId) -> str:
        return f"{self.places}{capture}"

    def info(self, changefeed: ChangefeedKey) -> str:
        return f"{self.base}/{changefeed.namespace}/changefeed/info/{changefeed.id}"

    def status(self, changefeed: ChangefeedKey) -> str:
        return f"{self.base}/{changefeed.namespace}/changefeed/status/{changefeed.id}"

    def changefeed_of(self, info_key: str) -> ChangefeedKey | None:
        """Of the key of an info; None: it is another key."""
        parts = info_key.removeprefix(f"{self.base}/").split("/")
        if len(parts) == 4 and parts[1:3] == ["changefeed", "info"]:
            return ChangefeedKey(parts[0], parts[3])
        return None

    def name(self, changefeed: ChangefeedKey) -> str:
        return f"{self._ours_of(changefeed)}/name/{changefeed.id}"

    def state(self, changefeed: ChangefeedKey) -> str:
        return f"{self._ours_of(changefeed)}/state/{changefeed.id}"

    def parts(self, changefeed: ChangefeedKey) -> str:
        return f"{self._ours_of(changefeed)}/part/{changefeed.id}/"

    def _ours_of(self, changefeed: ChangefeedKey) -> str:
        return f"{self.ours}/{changefeed.namespace}/changefeed"
