"""The transport settings that a real cluster insists on."""

from tidemill.upstream.channel import OPTIONS

ETCD_LEAST_PING_MS = 5_000  # etcd's GRPCKeepAliveMinTime


def test_pd_is_pinged_only_during_calls_and_not_too_often() -> None:
    options = dict(OPTIONS)
    assert options["grpc.keepalive_permit_without_calls"] == 0
    assert options["grpc.keepalive_time_ms"] >= ETCD_LEAST_PING_MS
