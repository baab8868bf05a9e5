"""The guest, natively: `python3 -m unittest`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

from app import Model
from vcr_guest import GuestError, StepShape

CONFIG = {"ns_per_step": 1000, "ns_per_token": 10, "ns_per_request": 100}


class Prices(unittest.TestCase):
    def test_a_step_costs_its_tokens_and_requests(self):
        step = StepShape(0, decode_requests=2, decode_tokens=2)
        self.assertEqual(Model(CONFIG, 0).price(step), 1000 + 20 + 200)

    def test_a_negative_price_is_refused_by_name(self):
        with self.assertRaisesRegex(GuestError, "invalid `ns_per_token`"):
            Model(CONFIG | {"ns_per_token": -1}, 0)

    def test_a_misspelt_field_is_named(self):
        with self.assertRaisesRegex(GuestError, "unknown field `ns_per_tokne`"):
            Model(CONFIG | {"ns_per_tokne": 1}, 0)


if __name__ == "__main__":
    unittest.main()
