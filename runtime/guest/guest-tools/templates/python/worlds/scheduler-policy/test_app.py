"""The guest, natively: `python3 -m unittest`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

from app import ShortestFirst
from vcr_guest import Arrived, EngineView, Ended, GuestError, Preferences


def admission(config, *events):
    preferences = Preferences()
    engine = EngineView(0, 2048, 8, 100, 100, list(events), [])
    ShortestFirst(config, 0).decide(engine, preferences)
    return preferences.admission


class Order(unittest.TestCase):
    def test_a_request_waits_at_the_length_of_its_prompt(self):
        event = Arrived(slot=3, arrival_ns=0, prompt_tokens=50, max_tokens=9, priority=0, adapter=None, tenant=0)
        self.assertEqual(admission({}, event), [(3, 50)])

    def test_who_comes_later_waits_behind(self):
        event = Arrived(slot=3, arrival_ns=2_000_000_000, prompt_tokens=50, max_tokens=9, priority=0, adapter=None, tenant=0)
        self.assertEqual(admission({"tokens_per_second": 100}, event), [(3, 250)])

    def test_an_ended_request_has_no_rank(self):
        event = Arrived(slot=3, arrival_ns=0, prompt_tokens=50, max_tokens=9, priority=0, adapter=None, tenant=0)
        self.assertEqual(admission({}, event, Ended(slot=3, computed_tokens=0, output_tokens=0)), [])

    def test_a_misspelt_field_is_named(self):
        with self.assertRaisesRegex(GuestError, "unknown field `tokens`"):
            ShortestFirst({"tokens": 1}, 0)


if __name__ == "__main__":
    unittest.main()
