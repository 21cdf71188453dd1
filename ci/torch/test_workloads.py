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

    def __init__(self, failing=(), lacking=()):
        self.now, self.runs, self.failing, self.lacking = 0.0, [], failing, lacking

    def monotonic(self):
        return self.now

    def run(self, script, name, arm, history, limit, allowed=None):
        self.runs.append((name, arm) if allowed is None else (name, arm, allowed))
        self.now += min(limit, 1.0)
        if allowed is not None and arm in self.lacking:
            return {"failed": "Traceback\nOutOfMemoryError: no room", "lacked_memory": True}
        if limit < 1.0 or name in self.failing:
            return {"failed": "it ended without a word"}
        whose = "cuda-mem" if arm == "cuda-mem" else "native"
        return {
            "backend": whose, "seconds": 1.0, "steps": 0.5, "reserved": 101, "active": 100, "driver": 101, "losses": ["0x1p+0"],
            "last_loss": 1.0, "out_of_memory": 0,
        }


def take(clock, names, rounds, seconds, factor=None):
    turns, told = [workloads.Turns(Path("x.py"), name, False, factor) for name in names], []
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

    def test_with_a_limit_each_round_is_followed_by_one_that_may_hold_less(self):
        clock = Clock(lacking=["native"])
        turns, _, said = take(clock, ["one"], 2, 1000, 1.05)
        limited = [run[1:] for run in clock.runs if len(run) == 3]
        order = ("expandable", "cuda-mem", "native", "cuda-mem", "native", "expandable")
        self.assertEqual(limited, [(arm, 105) for arm in order])
        native, expandable, ours = turns[0].rows_with_limit()
        self.assertEqual((native["failed"], native["rounds"], native["time"]), (2, 2, None))
        self.assertEqual((ours["failed"], ours["rounds"], ours["time"], ours["losses"]), (0, 2, (1.0, 1.0, 1.0), "equal"))
        self.assertEqual(said.count("no room  one native"), 2)
        self.assertFalse(turns[0].failed, "without a limit it goes on")
        missed = workloads.missed_with_limit
        self.assertEqual([missed(row) for row in (native, expandable, ours)], [[], [], []], "the others are for the record")
        self.assertEqual(missed(ours | {"time": (1.2, 1.1, 1.3)}), ["takes 1.200 of its time without a limit, more than 1.1"])
        self.assertEqual(missed(native | {"arm": "cuda-mem"}), ["2 of 2 runs failed at 0 MiB", "with a limit, losses: none in a run"])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            workloads.table_with_limit([native, ours])
        self.assertEqual(printed.getvalue().count("| one | off |"), 2)

    def test_options_of_enable_are_values_of_python(self):
        found = [workloads.option(text) for text in ("a=1.02", "b=True", "c=ample")]
        self.assertEqual(found, [("a", 1.02), ("b", True), ("c", "ample")])

    def test_the_file_is_whole_after_each_round(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "rows.json"
            for count in (1, 2):
                workloads.write(out, [{"workload": "one", "rounds": count}])
                self.assertEqual(json.loads(out.read_text())[0]["rounds"], count)
            self.assertEqual([path.name for path in Path(folder).iterdir()], ["rows.json"])


if __name__ == "__main__":
    unittest.main()
