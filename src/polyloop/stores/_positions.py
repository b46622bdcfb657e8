"""The one check that every store makes before it takes a record. Pure: the medium makes it atomic."""

from __future__ import annotations

from polyloop.types import Record, RunAlreadyExists, RunConflict, RunStarted


def check_position(key: str, record: Record, next_seq: int, *, ended: bool) -> None:
    """Refuse a record that may not stand at the end of this log.

    Args:
        key: The run's key, for the message.
        record: The record to be appended.
        next_seq: How many records the log holds.
        ended: Whether its last record is an end record other than `cancelled`.

    Raises:
        RunAlreadyExists: a start record, and the log holds a record.
        RunConflict: any other record that is not the next one.
    """
    if isinstance(record, RunStarted):
        if next_seq:
            raise RunAlreadyExists(key)
        if record.seq:
            raise RunConflict(key, "a start record must stand at position 0", seq=record.seq, next_seq=0)
        return
    if not next_seq:
        raise RunConflict(key, "the log is empty, and its first record must be a start record", seq=record.seq)
    if ended:
        raise RunConflict(key, "the run has ended, nothing may follow", seq=record.seq, next_seq=next_seq)
    if record.seq != next_seq:
        problem = f"a record for position {record.seq} was refused, the log expects position {next_seq}"
        raise RunConflict(key, problem, seq=record.seq, next_seq=next_seq)
