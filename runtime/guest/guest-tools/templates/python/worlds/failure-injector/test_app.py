"""The guest, natively: `python3 -m unittest`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

from app import FailSome
from vcr_guest import Actions, FaultBatch, GuestError, RequestArrived, RequestEnded, TokensEmitted


def said(injector, *events, step=1):
    actions = Actions()
    injector.decide(FaultBatch(0, step, list(events)), actions)
    return actions.said


class Failures(unittest.TestCase):
    def test_every_second_request_fails_after_its_tokens(self):
        injector = FailSome({"every": 2, "after_tokens": 3}, 0)
        arrivals = [RequestArrived(slot, f"request {slot}") for slot in (0, 1)]
        self.assertEqual(said(injector, *arrivals, TokensEmitted(1, 2)), [])
        self.assertEqual(said(injector, TokensEmitted(0, 3), TokensEmitted(1, 3)), [("FailRequest", (1,))])

    def test_a_request_that_ended_is_not_failed(self):
        injector = FailSome({"every": 1}, 0)
        self.assertEqual(said(injector, RequestArrived(0, "a"), TokensEmitted(0, 1), RequestEnded(0)), [])

    def test_the_engine_stalls_now_and_then(self):
        injector = FailSome({"stall_every_steps": 10, "stall_ms": 5}, 0)
        self.assertEqual(said(injector, step=9), [])
        self.assertEqual(said(injector, step=10), [("Stall", (5_000_000,))])

    def test_a_misspelt_field_is_named(self):
        with self.assertRaisesRegex(GuestError, "unknown field `evry`"):
            FailSome({"evry": 1}, 0)


if __name__ == "__main__":
    unittest.main()
