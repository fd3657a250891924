"""A whole topic through the checker: from its beginning to where it ended when we came."""

from collections.abc import Callable

import numpy as np

from tidemill.consumer.checker import Checker
from tidemill.consumer.listening import BEGINNING, Listening
from tidemill.consumer.report import Report
from tidemill.errors import StoppedError
from tidemill.flow.reader.registry import reader_for
from tidemill.sinks.kafka import KafkaOptions

_MESSAGES_A_POLL = 20_000
_POLL_SECONDS = 0.2


def check_topic(
    kafka: KafkaOptions, *, keys_stay: bool, partitions: int | None = None, should_stop: Callable[[], bool]
) -> Report:
    """``partitions``: how many were in use at first. Raises UsageError where there is no such topic, ``StoppedError``
    once ``should_stop``."""
    listening = Listening(kafka)
    try:
        there = listening.partitions()
        wanted = partitions or kafka.partition_num or there
        left = {p: end for p, end in listening.ends(max(there, wanted)).items() if end > 0}
        checker = Checker(wanted, keys_stay=keys_stay, broadcasts_ddls=kafka.protocol.name != "canal-json")
        readers = {p: reader_for(kafka.protocol) for p in left}
        listening.listen(dict.fromkeys(left, BEGINNING))
        left = {p: end for p, end in left.items() if listening.positions[p] < end}
        while left:
            if should_stop():
                raise StoppedError("stopped before the whole topic was read.")
            for heard in listening.poll(_MESSAGES_A_POLL, _POLL_SECONDS):
                if heard.partition in left:
                    events = readers[heard.partition].read(heard.messages)
                    checker.observe(heard.partition, np.array(heard.offsets, np.int64), events)
            left = {p: end for p, end in left.items() if listening.positions[p] < end}
        return checker.report()
    finally:
        listening.close()
