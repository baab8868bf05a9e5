"""The guest, natively: `python3 -m unittest`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

from app import LeastLoaded
from vcr_guest import REFUSE, GuestError, RouteRequest, WorkerLoad


def choice(waiting, cached, may_refuse=True):
    router = LeastLoaded({"cached_block_weight": 2, "max_waiting": 8}, 0)
    first = WorkerLoad(0, waiting_requests=waiting, active_blocks=40)
    second = WorkerLoad(3, waiting_requests=waiting, active_blocks=50, cached_prompt_blocks=cached)
    return router.route(RouteRequest(0, id=1, may_refuse=may_refuse), [first, second])


class Choices(unittest.TestCase):
    def test_a_cached_prefix_outweighs_some_load(self):
        self.assertEqual(choice(0, 0), 0)
        self.assertEqual(choice(0, 6), 3)

    def test_prompts_that_are_not_computed_count_as_load(self):
        router = LeastLoaded({"cached_block_weight": 2}, 0)
        workers = [WorkerLoad(0, outstanding_prefill_tokens=100), WorkerLoad(3)]
        self.assertEqual(router.route(RouteRequest(0, id=1), workers), 3)

    def test_a_request_is_refused_where_all_are_full_and_it_may_be(self):
        self.assertIs(choice(9, 0), REFUSE)
        self.assertEqual(choice(9, 0, may_refuse=False), 0)

    def test_a_misspelt_field_is_named(self):
        with self.assertRaisesRegex(GuestError, "unknown field `max_wait`"):
            LeastLoaded({"max_wait": 1}, 0)


if __name__ == "__main__":
    unittest.main()
