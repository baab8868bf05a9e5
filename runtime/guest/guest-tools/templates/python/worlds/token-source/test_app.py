"""The guest, natively: `python3 -m unittest`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

from app import Echo
from vcr_guest import GuestError, TokenRequest


class Output(unittest.TestCase):
    def test_the_prompt_is_said_again_and_ends(self):
        echo = Echo({"times": 2}, 0)
        state = echo.start(TokenRequest(slot=0, seed=1, prompt=[5, 6], max_tokens=9, eos_token=2))
        self.assertEqual([echo.next_token(state, index) for index in range(5)], [5, 6, 5, 6, 2])

    def test_a_request_without_a_prompt_is_refused(self):
        with self.assertRaisesRegex(GuestError, "without a prompt"):
            Echo({}, 0).start(TokenRequest(slot=0, seed=1, prompt=[], max_tokens=9))

    def test_a_misspelt_field_is_named(self):
        with self.assertRaisesRegex(GuestError, "unknown field `time`"):
            Echo({"time": 1}, 0)


if __name__ == "__main__":
    unittest.main()
