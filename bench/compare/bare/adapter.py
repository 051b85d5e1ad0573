"""The bare loop of `planck-bench`, as a contender of tools/compare."""

import os
import sys

BENCH = os.environ["COMPARE_PLANCK_BENCH"]

if sys.argv[1] == "version":
    print("version of this commit")
else:
    _, _, workload, agents, turns = sys.argv
    folders = ["--dir", os.environ["COMPARE_DIR"], "--store", os.environ["COMPARE_STORE"]]
    options = [f"--agents={agents}", "--sessions=1", f"--turns={turns}", f"--model={os.environ['COMPARE_MODEL']}", f"--bare={workload}"]
    os.execv(BENCH, [BENCH, "contend", *options, *folders])
