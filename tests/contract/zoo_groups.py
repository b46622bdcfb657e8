"""Groups of the promises of `RunStore` that one fault breaks together, for the zoo of wrong stores."""

from __future__ import annotations

from tests.contract import store_objects, store_tools, store_values
from tests.contract.store_suite import PROMISES

EVERYTHING = frozenset(promise.name for promise in PROMISES)
VALUES = EVERYTHING & vars(store_values).keys()
OBJECTS = EVERYTHING & vars(store_objects).keys()
KEYS = frozenset(promise.name for promise in PROMISES if promise.sentence == store_tools.KEYS)
CANCELLATION = frozenset({"a_cancelled_append_is_whole_or_nothing", "an_append_cancelled_twice_is_whole_or_nothing"})

REFUSALS = frozenset(
    {
        "a_refusal_blocks_the_key_until_it_is_read",
        "a_refusal_blocks_no_other_key",
        "a_refusal_blocks_no_other_object",
        "a_blocked_key_refuses_every_append",
        "a_refusal_among_calls_at_once_concerns_one_run",
        "the_refusal_of_an_ordered_append_surfaces",
        "a_barrier_tells_of_every_ordered_record_before_it",
        "a_fresh_object_refuses_without_having_read",
        "a_stale_position_is_refused",
        "an_object_that_is_behind_is_refused",
        "a_stale_stretch_of_records_is_refused_whole",
        "of_two_tasks_at_one_position_one_wins",
        "of_two_objects_at_one_position_one_wins",
    }
)
