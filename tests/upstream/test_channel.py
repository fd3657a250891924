"""The transport settings that a real cluster insists on."""

from tidemill.upstream.channel import OPTIONS

ETCD_LEAST_PING_MS = 5_000  # etcd's GRPCKeepAliveMinTime


def test_pd_is_pinged_only_during_calls_and_not_too_often() -> None:
    options = dict(OPTIONS)
    assert options["grpc.keepalive_permit_without_calls"] == 0
    assert options["grpc.keepalive_time_ms"] >= ETCD_LEAST_PING_MS


def test_a_handshake_over_a_slow_network_is_waited_for() -> None:
    options = dict(OPTIONS)
    assert options["grpc.min_reconnect_backoff_ms"] >= 3_000  # gRPC's limit for one attempt to connect
    assert options["grpc.initial_reconnect_backoff_ms"] <= 100  # and the wait after one that was refused
