"""The matcher's compiled loops, over plain arrays. ``matcher.py`` owns the arrays and says what they mean.

slots     one row per registration of a region on a stream
entries   one row per change that waits: a PREWRITE in a hash chain and in its slot's list of
          siblings, or a COMMIT or ROLLBACK that came before INITIALIZED, in its slot's queues
arena     the bytes of waiting changes and of the slots' bounds
out       one row per change to hand on; its bytes lie in the message or in the arena
marks     one row per change to hand on that has an expiry or a source: its number in out, and both
"""

from typing import Any

import numpy as np

from tidemill.columnar.jit import i64, kernel

# Columns of slots
S_REQUEST, S_REGION, S_CHECKPOINT, S_RESOLVED, S_STATE, S_SIBLINGS = range(6)
S_COMMITS, S_COMMITS_LAST, S_ROLLBACKS, S_ROLLBACKS_LAST = range(6, 10)
S_LOWER, S_LOWER_LEN, S_UPPER, S_UPPER_LEN, S_MARK = range(10, 15)
SLOT_COLUMNS = 15
# Values of S_STATE
FREE, SCANNING, LIVE, FAILED = range(4)
# Places of the index that hold no slot
NEVER_USED, LEFT = -1, -2

# Columns of entries
E_SLOT, E_START, E_COMMIT, E_OP, E_GENERATION, E_HASH, E_NEXT, E_BEFORE, E_AFTER = range(9)
E_KEY, E_KEY_LEN, E_VALUE, E_VALUE_LEN, E_OLD, E_OLD_LEN = range(9, 15)
ENTRY_COLUMNS = 15
E_TXN_SOURCE = E_COMMIT  # of a PREWRITE, which has no commit-ts

# Columns of out
O_SLOT, O_START, O_COMMIT, O_OP, O_SOURCE = range(5)
O_KEY, O_KEY_LEN, O_VALUE, O_VALUE_LEN, O_OLD, O_OLD_LEN = range(5, 11)
OUT_COLUMNS = 11
FROM_MESSAGE, FROM_ARENA = 0, 1

# Counters shared between calls
C_FREE, C_USED, C_LIVE, C_ARENA, C_CACHED, C_OUT, C_ADVANCED, C_INITIALIZED, C_FAILED, C_ROW, C_MARKS = range(11)
COUNTERS = 11

# What match() ends with
OK, BELOW_RESOLVED, NO_OPERATION, STRANGE_TYPE = range(4)


@kernel
def copy(source: Any, at: int, target: Any, to: int, length: int) -> None:
    # Unsigned positions, here and below: with signed ones every access first asks whether it
    # counts from the end, and the loop runs ten times slower.
    x, y = np.uint64(at), np.uint64(to)
    for i in range(np.uint64(length)):
        target[y + i] = source[x + i]


@kernel
def _pair_hash(request: int, region: int, mask: int) -> Any:
    h = np.uint64(request) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(region)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((h ^ (h >> np.uint64(32))) & np.uint64(mask))


@kernel
def add_to_index(slots: Any, index: Any, s: int) -> None:
    """Let ``find_slot`` find slot ``s``. The index (a power of two) must have room."""
    mask = len(index) - 1
    at = _pair_hash(slots[s, S_REQUEST], slots[s, S_REGION], mask)
    while index[at] >= 0:
        at = (at + 1) & mask
    index[at] = s


@kernel
def remove_from_index(slots: Any, index: Any, s: int) -> None:
    mask = len(index) - 1
    at = _pair_hash(slots[s, S_REQUEST], slots[s, S_REGION], mask)
    while index[at] != s:
        at = (at + 1) & mask
    index[at] = LEFT  # what collided with it lies behind and must still be found


@kernel
def build_index(slots: Any, index: Any) -> None:
    index[:] = NEVER_USED
    for s in range(len(slots)):
        if slots[s, S_STATE] != FREE:
            add_to_index(slots, index, s)


@kernel
def find_slot(slots: Any, index: Any, request: int, region: int) -> Any:
    mask = len(index) - 1
    at = _pair_hash(request, region, mask)
    while index[at] != NEVER_USED:
        s = index[at]
        if s >= 0 and slots[s, S_REQUEST] == request and slots[s, S_REGION] == region:
            return s
        at = (at + 1) & mask
    return -1


@kernel
def _key_hash(slot: int, start_ts: int, buf: Any, at: int, length: int) -> Any:
    h = np.uint64(slot) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start_ts)
    first = np.uint64(at)
    for i in range(np.uint64(length)):
        h = (h ^ np.uint64(buf[first + i])) * np.uint64(0x100000001B3)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(h >> np.uint64(1))


@kernel
def _same(a: Any, at: int, b: Any, bt: int, length: int) -> Any:
    x, y = np.uint64(at), np.uint64(bt)
    i, end = np.uint64(0), np.uint64(length)
    while i < end and a[x + i] == b[y + i]:
        i += np.uint64(1)
    return i == end


@kernel
def _is_below(a: Any, at: int, a_len: int, b: Any, bt: int, b_len: int) -> Any:
    x, y = np.uint64(at), np.uint64(bt)
    for i in range(np.uint64(min(a_len, b_len))):
        if a[x + i] != b[y + i]:
            return bool(a[x + i] < b[y + i])
    return bool(a_len < b_len)


@kernel
def _is_outside(slot: Any, arena: Any, buf: Any, at: int, length: int) -> Any:
    if _is_below(buf, at, length, arena, slot[S_LOWER], slot[S_LOWER_LEN]):
        return True
    return slot[S_UPPER_LEN] >= 0 and not _is_below(buf, at, length, arena, slot[S_UPPER], slot[S_UPPER_LEN])


@kernel
def _find(entries: Any, buckets: Any, arena: Any, s: int, start_ts: int, h: int, buf: Any, at: int, n: int) -> Any:
    e = buckets[h & (len(buckets) - 1)]
    while e >= 0:
        x = entries[e]
        is_alike = x[E_HASH] == h and x[E_START] == start_ts and x[E_SLOT] == s and x[E_KEY_LEN] == n
        if is_alike and _same(arena, x[E_KEY], buf, at, n):
            return e
        e = x[E_NEXT]
    return -1


@kernel
def _take_entry(entries: Any, counters: Any) -> Any:
    counters[C_LIVE] += 1
    e = counters[C_FREE]
    if e >= 0:
        counters[C_FREE] = entries[e, E_NEXT]
        return e
    counters[C_USED] += 1
    return counters[C_USED] - 1


@kernel
def _free_entry(entries: Any, counters: Any, e: int) -> None:
    entries[e, E_SLOT] = -1
    entries[e, E_NEXT] = counters[C_FREE]
    counters[C_FREE] = e
    counters[C_LIVE] -= 1


@kernel
def _keep(arena: Any, counters: Any, buf: Any, at: int, length: int) -> Any:
    to = counters[C_ARENA]
    copy(buf, at, arena, to, length)
    counters[C_ARENA] = to + length
    return to


@kernel
def _store_prewrite(
    slots: Any, entries: Any, buckets: Any, arena: Any, counters: Any, s: int, h: int, row: Any, buf: Any, source: int
) -> None:
    e = _take_entry(entries, counters)
    x = entries[e]
    x[E_TXN_SOURCE] = source
    x[E_SLOT], x[E_START], x[E_OP], x[E_GENERATION], x[E_HASH] = s, row[2], row[1], row[10], h
    x[E_KEY], x[E_KEY_LEN] = _keep(arena, counters, buf, row[4], row[5]), row[5]
    x[E_VALUE], x[E_VALUE_LEN] = _keep(arena, counters, buf, row[6], row[7]), row[7]
    x[E_OLD], x[E_OLD_LEN] = _keep(arena, counters, buf, row[8], row[9]), row[9]
    bucket = h & (len(buckets) - 1)
    x[E_NEXT] = buckets[bucket]
    buckets[bucket] = e
    after = slots[s, S_SIBLINGS]
    x[E_BEFORE], x[E_AFTER] = -1, after
    if after >= 0:
        entries[after, E_BEFORE] = e
    slots[s, S_SIBLINGS] = e


@kernel
def _remove_prewrite(slots: Any, entries: Any, buckets: Any, counters: Any, e: int) -> None:
    x = entries[e]
    bucket = x[E_HASH] & (len(buckets) - 1)
    at = buckets[bucket]
    if at == e:
        buckets[bucket] = x[E_NEXT]
    else:
        while entries[at, E_NEXT] != e:
            at = entries[at, E_NEXT]
        entries[at, E_NEXT] = x[E_NEXT]
    if x[E_BEFORE] >= 0:
        entries[x[E_BEFORE], E_AFTER] = x[E_AFTER]
    else:
        slots[x[E_SLOT], S_SIBLINGS] = x[E_AFTER]
    if x[E_AFTER] >= 0:
        entries[x[E_AFTER], E_BEFORE] = x[E_BEFORE]
    _free_entry(entries, counters, e)


@kernel
def _queue(slots: Any, entries: Any, arena: Any, counters: Any, s: int, h: int, row: Any, buf: Any, head: int) -> None:
    """Set a COMMIT or ROLLBACK aside until INITIALIZED; ``head`` is the column of its queue."""
    e = _take_entry(entries, counters)
    counters[C_CACHED] += 1
    x = entries[e]
    x[E_SLOT], x[E_START], x[E_COMMIT], x[E_OP], x[E_HASH] = s, row[2], row[3], row[1], h
    x[E_KEY], x[E_KEY_LEN] = _keep(arena, counters, buf, row[4], row[5]), row[5]
    x[E_VALUE_LEN], x[E_OLD_LEN], x[E_NEXT] = 0, 0, -1
    last = slots[s, head + 1]
    if last >= 0:
        entries[last, E_NEXT] = e
    else:
        slots[s, head] = e
    slots[s, head + 1] = e


@kernel
def _drop_queue(slots: Any, entries: Any, counters: Any, s: int, head: int) -> None:
    e = slots[s, head]
    while e >= 0:
        following = entries[e, E_NEXT]
        _free_entry(entries, counters, e)
        counters[C_CACHED] -= 1
        e = following
    slots[s, head], slots[s, head + 1] = -1, -1


@kernel
def forget(slots: Any, entries: Any, buckets: Any, counters: Any, s: int) -> None:
    """Drop everything that waits for slot ``s``."""
    while slots[s, S_SIBLINGS] >= 0:
        _remove_prewrite(slots, entries, buckets, counters, slots[s, S_SIBLINGS])
    _drop_queue(slots, entries, counters, s, S_COMMITS)
    _drop_queue(slots, entries, counters, s, S_ROLLBACKS)


@kernel
def _emit_pair(
    slots: Any, entries: Any, out: Any, marks: Any, counters: Any, s: int, e: int, commit_ts: int, op: int
) -> Any:
    """Hand on prewrite ``e``, committed. What lies at or below the checkpoint was handed on long ago."""
    if commit_ts <= slots[s, S_CHECKPOINT]:
        return OK
    if commit_ts <= slots[s, S_RESOLVED]:
        return BELOW_RESOLVED
    if op != 1 and op != 2:
        return NO_OPERATION
    x, o = entries[e], out[counters[C_OUT]]
    o[O_SLOT], o[O_START], o[O_COMMIT], o[O_OP], o[O_SOURCE] = s, x[E_START], commit_ts, op, FROM_ARENA
    for c in range(6):
        o[O_KEY + c] = x[E_KEY + c]
    if x[E_TXN_SOURCE]:
        _mark(marks, counters, counters[C_OUT], 0, x[E_TXN_SOURCE])
    counters[C_OUT] += 1
    return OK


@kernel
def _mark(marks: Any, counters: Any, number: int, expiry: int, source: int) -> None:
    """Note what few changes have, for row ``number`` of out."""
    n = counters[C_MARKS]
    marks[n, 0], marks[n, 1], marks[n, 2] = number, expiry, source
    counters[C_MARKS] = n + 1


@kernel
def _initialize(slots: Any, entries: Any, buckets: Any, arena: Any, counters: Any, out: Any, marks: Any, s: int) -> Any:
    slots[s, S_STATE] = LIVE
    outcome = OK
    e = slots[s, S_COMMITS]
    while e >= 0 and outcome == OK:
        x = entries[e]
        p = _find(entries, buckets, arena, s, x[E_START], x[E_HASH], arena, x[E_KEY], x[E_KEY_LEN])
        if p >= 0:  # otherwise the scan has brought it as COMMITTED
            outcome = _emit_pair(slots, entries, out, marks, counters, s, p, x[E_COMMIT], x[E_OP])
            _remove_prewrite(slots, entries, buckets, counters, p)
        e = x[E_NEXT]
    e = slots[s, S_ROLLBACKS]
    while e >= 0:
        x = entries[e]
        p = _find(entries, buckets, arena, s, x[E_START], x[E_HASH], arena, x[E_KEY], x[E_KEY_LEN])
        if p >= 0:
            _remove_prewrite(slots, entries, buckets, counters, p)
        e = x[E_NEXT]
    _drop_queue(slots, entries, counters, s, S_COMMITS)
    _drop_queue(slots, entries, counters, s, S_ROLLBACKS)
    return outcome


@kernel
def _resolve(slots: Any, index: Any, line: Any, regions: Any, counters: Any, advanced: Any) -> None:
    ts = line[0]
    for i in range(line[2], line[3]):
        s = find_slot(slots, index, line[1], regions[i])
        if s < 0 or slots[s, S_STATE] != LIVE or ts <= slots[s, S_RESOLVED]:
            continue
        slots[s, S_RESOLVED] = ts
        if slots[s, S_MARK] == 0:
            slots[s, S_MARK] = 1
            advanced[counters[C_ADVANCED]] = s
            counters[C_ADVANCED] += 1


@kernel
def match(
    buf: Any, events: Any, rows: Any, rare: Any, resolved: Any, regions: Any,
    slots: Any, index: Any, entries: Any, buckets: Any, arena: Any, counters: Any,
    out: Any, marks: Any, advanced: Any, initialized: Any, failed: Any,
) -> Any:  # fmt: skip
    """One pass over rows and resolved-ts in the order in which they came."""
    event_slots = np.empty(len(events), dtype=np.int64)
    for i in range(len(events)):
        event_slots[i] = find_slot(slots, index, events[i, 1], events[i, 0])
    turn = 0
    next_rare = 0
    for r in range(len(rows)):
        expiry, source = i64(0), i64(0)
        if next_rare < len(rare) and rare[next_rare, 0] == r:
            expiry, source = rare[next_rare, 1], rare[next_rare, 2]
            next_rare += 1
        while turn < len(resolved) and resolved[turn, 4] <= r:
            _resolve(slots, index, resolved[turn], regions, counters, advanced)
            turn += 1
        row = rows[r]
        s, kind = event_slots[row[11]], row[0]
        if s < 0 or kind == 0 or slots[s, S_STATE] == FAILED:
            continue
        outcome = OK
        if kind == 5:  # INITIALIZED
            if slots[s, S_STATE] == SCANNING:
                outcome = _initialize(slots, entries, buckets, arena, counters, out, marks, s)
                initialized[counters[C_INITIALIZED]] = s
                counters[C_INITIALIZED] += 1
        elif kind < 0 or kind > 5:
            outcome = STRANGE_TYPE
        elif not _is_outside(slots[s], arena, buf, row[4], row[5]):
            if kind == 4:  # COMMITTED
                number = counters[C_OUT]
                outcome = _emit_row(slots, out, counters, s, row)
                if (expiry | source) and counters[C_OUT] > number:
                    _mark(marks, counters, number, expiry, source)
            else:
                outcome = _match_row(slots, entries, buckets, arena, counters, out, marks, failed, s, row, buf, source)
        if outcome != OK:
            counters[C_ROW] = r
            return outcome
    while turn < len(resolved):
        _resolve(slots, index, resolved[turn], regions, counters, advanced)
        turn += 1
    return OK


@kernel
def _emit_row(slots: Any, out: Any, counters: Any, s: int, row: Any) -> Any:
    if row[3] <= slots[s, S_CHECKPOINT]:
        return OK
    if row[3] <= slots[s, S_RESOLVED]:
        return BELOW_RESOLVED
    if row[1] != 1 and row[1] != 2:
        return NO_OPERATION
    o = out[counters[C_OUT]]
    o[O_SLOT], o[O_START], o[O_COMMIT], o[O_OP], o[O_SOURCE] = s, row[2], row[3], row[1], FROM_MESSAGE
    for c in range(6):
        o[O_KEY + c] = row[4 + c]
    counters[C_OUT] += 1
    return OK


@kernel
def _match_row(
    slots: Any, entries: Any, buckets: Any, arena: Any, counters: Any, out: Any, marks: Any, failed: Any,
    s: int, row: Any, buf: Any, source: int,
) -> Any:  # fmt: skip
    """A PREWRITE, COMMIT or ROLLBACK."""
    kind, is_live = row[0], slots[s, S_STATE] == LIVE
    h = _key_hash(s, row[2], buf, row[4], row[5])
    e = _find(entries, buckets, arena, s, row[2], h, buf, row[4], row[5])
    if kind == 1:  # PREWRITE
        if e >= 0:
            # A lock that a heartbeat rewrote comes without its value; the first one stands.
            if row[7] == 0 or row[10] < entries[e, E_GENERATION]:
                return OK
            _remove_prewrite(slots, entries, buckets, counters, e)
        _store_prewrite(slots, entries, buckets, arena, counters, s, h, row, buf, source)
    elif kind == 3:  # ROLLBACK
        if not is_live:
            _queue(slots, entries, arena, counters, s, h, row, buf, S_ROLLBACKS)
        elif e >= 0:
            _remove_prewrite(slots, entries, buckets, counters, e)
    else:  # COMMIT
        if e >= 0 and (is_live or (entries[e, E_VALUE_LEN] > 0 and entries[e, E_GENERATION] == 0)):
            outcome = _emit_pair(slots, entries, out, marks, counters, s, e, row[3], row[1])
            _remove_prewrite(slots, entries, buckets, counters, e)
            return outcome
        if is_live:
            forget(slots, entries, buckets, counters, s)
            slots[s, S_STATE] = FAILED
            failed[counters[C_FAILED]] = s
            counters[C_FAILED] += 1
        else:
            _queue(slots, entries, arena, counters, s, h, row, buf, S_COMMITS)
    return OK


@kernel
def rehash(entries: Any, slots: Any, buckets: Any) -> None:
    """Chain every waiting PREWRITE anew into ``buckets``."""
    buckets[:] = -1
    for s in range(len(slots)):
        e = slots[s, S_SIBLINGS] if slots[s, S_STATE] != FREE else -1
        while e >= 0:
            bucket = entries[e, E_HASH] & (len(buckets) - 1)
            entries[e, E_NEXT] = buckets[bucket]
            buckets[bucket] = e
            e = entries[e, E_AFTER]


@kernel
def move(entries: Any, slots: Any, old: Any, new: Any, counters: Any) -> None:
    """Copy what is still used of arena ``old`` to the front of ``new``."""
    counters[C_ARENA] = 0
    for e in range(counters[C_USED]):
        x = entries[e]
        if x[E_SLOT] >= 0:
            x[E_KEY] = _keep(new, counters, old, x[E_KEY], x[E_KEY_LEN])
            x[E_VALUE] = _keep(new, counters, old, x[E_VALUE], x[E_VALUE_LEN])
            x[E_OLD] = _keep(new, counters, old, x[E_OLD], x[E_OLD_LEN])
    for s in range(len(slots)):
        if slots[s, S_STATE] != FREE:
            slots[s, S_LOWER] = _keep(new, counters, old, slots[s, S_LOWER], slots[s, S_LOWER_LEN])
            slots[s, S_UPPER] = _keep(new, counters, old, slots[s, S_UPPER], max(slots[s, S_UPPER_LEN], 0))


@kernel
def used_bytes(entries: Any, slots: Any, counters: Any) -> Any:
    """What ``move`` would copy."""
    total = np.int64(0)
    for e in range(counters[C_USED]):
        if entries[e, E_SLOT] >= 0:
            total += entries[e, E_KEY_LEN] + entries[e, E_VALUE_LEN] + entries[e, E_OLD_LEN]
    for s in range(len(slots)):
        if slots[s, S_STATE] != FREE:
            total += slots[s, S_LOWER_LEN] + max(slots[s, S_UPPER_LEN], 0)
    return total


@kernel
def measure(out: Any, chosen: Any, sizes: Any) -> None:
    """How many bytes of keys, values and old values the chosen rows have."""
    for i in range(len(chosen)):
        for c in range(3):
            sizes[c] += out[chosen[i], O_KEY_LEN + 2 * c]


@kernel
def gather(
    buf: Any, arena: Any, out: Any, chosen: Any, numbers: Any, ops: Any, offsets: Any, keys: Any, values: Any, olds: Any
) -> None:
    """Write the chosen rows as columns: start-ts and commit-ts, op, and three of bytes with Arrow's offsets."""
    for i in range(len(chosen)):
        r = chosen[i]
        numbers[0, i], numbers[1, i], ops[i] = out[r, O_START], out[r, O_COMMIT], out[r, O_OP]
        source = buf if out[r, O_SOURCE] == FROM_MESSAGE else arena
        for c in range(3):
            at, length, to = out[r, O_KEY + 2 * c], out[r, O_KEY_LEN + 2 * c], offsets[c, i]
            if c == 0:
                copy(source, at, keys, to, length)
            elif c == 1:
                copy(source, at, values, to, length)
            else:
                copy(source, at, olds, to, length)
            offsets[c, i + 1] = to + length
