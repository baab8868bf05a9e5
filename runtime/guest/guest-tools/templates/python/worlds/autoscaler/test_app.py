"""The guest, natively: `python3 -m unittest`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

from app import ByRequests
from vcr_guest import GuestError, PoolView


class Engines(unittest.TestCase):
    def test_requests_that_run_and_wait_count(self):
        scaler = ByRequests({"requests_per_engine": 4}, 0)
        self.assertEqual(scaler.desired(PoolView(0, running_requests=8, waiting_requests=1)), 3)
        self.assertEqual(scaler.desired(PoolView(1)), 1, "one engine stays")

    def test_a_bad_share_is_named(self):
        with self.assertRaisesRegex(GuestError, "invalid `requests_per_engine`: expected above 0, got 0"):
            ByRequests({"requests_per_engine": 0}, 0)


if __name__ == "__main__":
    unittest.main()
