"""How workloads take turns, with runs that are played and a clock that they move."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import workloads


class Clock:
    """Each run takes a second, unless it is cut off."""

    def __init__(self, failing=()):
        self.now, self.runs, self.failing = 0.0, [], failing

    def monotonic(self):
        return self.now

    def run(self, script, name, arm, history, limit):
        self.runs.append((name, arm))
        self.now += min(limit, 1.0)
        if limit < 1.0 or name in self.failing:
            return {"failed": "it ended without a word"}
        whose = "cuda-mem" if arm == "cuda-mem" else "native"
        return {
            "backend": whose, "seconds": 1.0, "steps": 0.5, "reserved": 101, "active": 100, "driver": 101, "losses": ["0x1p+0"],
            "last_loss": 1.0,
        }


def take(clock, names, rounds, seconds):
    turns, told = [workloads.Turns(Path("x.py"), name, False) for name in names], []
    with mock.patch.object(workloads.time, "monotonic", clock.monotonic), contextlib.redirect_stdout(io.StringIO()) as said:
        workloads.take_turns(turns, rounds, 100, seconds, clock.run, told.append)
    return turns, told, said.getvalue()


class TurnsTest(unittest.TestCase):
    def test_each_round_is_told_and_the_next_one_begins_with_another(self):
        clock = Clock()
        turns, told, _ = take(clock, ["one", "two"], 2, 1000)
        self.assertEqual([(row["workload"], row["rounds"]) for row in told], [("one", 1), ("two", 1), ("one", 2), ("two", 2)])
        of_one = [arm for name, arm in clock.runs if name == "one"]
        first, second = ["native", "expandable", "cuda-mem"], ["expandable", "cuda-mem", "native"]
        self.assertEqual(of_one, ["native", *first, *second], "one that warms, then two rounds")
        self.assertEqual([len(runs) for turn in turns for runs in turn.of.values()], [2] * 6)
        self.assertEqual(told[0]["losses"], "equal")

    def test_the_end_cuts_a_run_off_and_leaves_what_was_whole(self):
        clock = Clock()
        turns, told, said = take(clock, ["one", "two"], 9, 9.5)
        self.assertEqual(clock.now, 9.5, "the last run had what was left")
        self.assertEqual([(row["workload"], row["rounds"]) for row in told], [("one", 1), ("two", 1)])
        self.assertEqual([len(runs) for turn in turns for runs in turn.of.values()], [1] * 6, "half a round does not count")
        self.assertFalse(any(turn.failed for turn in turns), "it is no failure")
        self.assertNotIn("failed", said)

    def test_what_fails_has_no_further_round_and_the_others_go_on(self):
        turns, told, said = take(Clock(failing=["one"]), ["one", "two"], 2, 1000)
        self.assertTrue(turns[0].failed and turns[0].row() is None and not turns[1].failed)
        self.assertEqual([row["workload"] for row in told], ["two", "two"])
        self.assertEqual(said.count("failed   one native"), 1)

    def test_the_file_is_whole_after_each_round(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "rows.json"
            for count in (1, 2):
                workloads.write(out, [{"workload": "one", "rounds": count}])
                self.assertEqual(json.loads(out.read_text())[0]["rounds"], count)
            self.assertEqual([path.name for path in Path(folder).iterdir()], ["rows.json"])


if __name__ == "__main__":
    unittest.main()
