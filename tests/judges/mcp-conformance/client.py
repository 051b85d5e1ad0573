"""Plays the client in a scenario of the conformance suite of MCP, with `planck sidecar call`.

The suite gives the address of its server as the last argument, and the scenario in the environment.
"""

import json
import os
import subprocess
import sys
import tempfile

NAME = "judged"
SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")

CALLS = {
    "tools_call": [("add_numbers", {"a": 5, "b": 3})],
    "elicitation-sep1034-client-defaults": [("test_client_elicitation_defaults", {})],
    "sse-retry": [("test_reconnection", {})],
    "http-standard-headers": [("test_headers", {})],
    "http-invalid-tool-headers": [("valid_tool", {})],
    "sep-2322-client-request-state": [
        (f"test_mrtr_{name}", {}) for name in ("echo_state", "no_state", "unrelated", "no_result_type")
    ],
}

calls = [(call["name"], call["arguments"]) for call in CONTEXT.get("toolCalls", [])]
for tool, arguments in calls or CALLS.get(SCENARIO, [("none", {})]):
    # The tools of each scenario are others, so none may be remembered.
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "PLANCK_MCP_JUDGED_URL": sys.argv[-1],
        }
        command = [os.environ["PLANCK"], "sidecar", "call", NAME, tool, json.dumps(arguments)]
        # A form with one field is answered by its value. An empty object leaves all fields at their defaults.
        answers = ("true\n" if SCENARIO == "sep-2322-client-request-state" else "{}\n") * 10
        subprocess.run(command, input=answers, text=True, env=environment, cwd=home, check=False, timeout=30)
