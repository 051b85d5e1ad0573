"""An MCP server that counts its calls, and says where it runs."""

import json
import os
import sys

TOOL = {"name": "count", "description": "Counts the calls.", "inputSchema": {"type": "object", "properties": {}}}


def send(request, result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
    sys.stdout.flush()


def main():
    calls = 0
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "counting", "version": "1.0.0"}
            send(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            send(request, {"tools": [TOOL]})
        elif method == "tools/call":
            calls += 1
            text = "%d in %s" % (calls, os.path.basename(os.getcwd()))
            send(request, {"content": [{"type": "text", "text": text}]})
        elif "id" in request and method is not None:
            error = {"code": -32601, "message": "no such method"}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}) + "\n")
            sys.stdout.flush()


main()
