"""Tests of the tools. They need neither a node nor NATS: the harness calls the tools through the code that answers a node."""

import asyncio
import unittest

from planck_sidecar import Harness

from sidecar import STEPS, sidecar


class SortWords(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.harness = Harness(sidecar)

    async def test_it_sorts_and_reports_progress(self) -> None:
        answer = await self.harness.call("sort_words", {"text": "to be or not"})
        self.assertEqual(answer.ok, "be not or to")
        self.assertEqual(len(answer.progress), STEPS)

    async def test_what_it_cannot_do_is_an_error_for_the_model(self) -> None:
        empty = await self.harness.call("sort_words", {"text": " "})
        self.assertIn("no words", empty.error or "")
        misfit = await self.harness.call("sort_words", {"text": 7})
        self.assertIn("`text` must be of type string", misfit.error or "")

    async def test_it_stops_when_the_answer_is_no_longer_wanted(self) -> None:
        call = asyncio.create_task(self.harness.call("sort_words", {"text": "a", "seconds": 2}, call_id="slow"))
        await asyncio.sleep(0.1)
        self.harness.cancel("slow")
        answer = await asyncio.wait_for(call, 2)
        self.assertIn("cancelled at step", answer.error or "")


if __name__ == "__main__":
    unittest.main()
