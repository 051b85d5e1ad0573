"""A sidecar on the bare NATS client: a tool, and everything the protocol asks of one."""

import asyncio, json, os, signal, uuid

import nats

NAME, ID = "text-bare-python", uuid.uuid4().hex
running, epochs, tasks = {}, {}, set()


PROPERTIES = {"text": {"type": "string"}, "times": {"type": "integer"}, "seconds": {"type": "number"}}
SCHEMA = json.dumps({"type": "object", "required": ["text", "times"], "properties": PROPERTIES})
METADATA = {"kind": "tool", "description": "Repeats a text.", "parameters": SCHEMA, "effect": "pure"}
ENDPOINT = {"name": "repeat", "subject": f"tool.{NAME}.repeat", "queue_group": NAME, "metadata": METADATA}


async def repeat(report, text: str, times: int, seconds=0):
    if type(text) is not str or type(times) is not int:
        raise ValueError("expected a text, and how often")
    for step in range(10 if seconds else 0):
        await report({"message": f"{10 - step} to go", "percent": step * 10})
        await asyncio.sleep(seconds / 10)
    return text * times


async def main():
    nc = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), max_reconnect_attempts=-1)

    async def send(subject, **said):
        body = json.dumps({"v": 1, **said}).encode()
        await nc.publish(subject, body if len(body) <= nc.max_payload else b'{"v":1,"error":"the answer is too large"}')

    async def answer(message, call_id=None):
        try:
            request = json.loads(message.data)
            if request["epoch"] < epochs.get(request["agent_id"], 0):
                raise ValueError("stale epoch: another node has taken over this agent")
            epochs[request["agent_id"]] = request["epoch"]
            if request["call_id"] in running:
                raise ValueError("in progress")
            running[call_id := request["call_id"]] = asyncio.current_task()
            call = repeat(lambda progress: send(message.reply, progress=progress), **request["args"])
            said = {"ok": await asyncio.wait_for(call, request["deadline_ms"] / 1000)}
        except (Exception, asyncio.CancelledError) as error:
            said = {"error": str(error) or type(error).__name__}
        running.pop(call_id, None)
        await send(message.reply, **said)

    async def take(message):
        if message.reply:
            tasks.add(task := asyncio.create_task(answer(message)))
            task.add_done_callback(tasks.discard)

    async def cancel(message):
        if task := running.get(json.loads(message.data).get("call_id")):
            task.cancel()

    async def discover(message):
        verb, *rest = message.subject.split(".")[1:]
        if rest in ([], [NAME], [NAME, ID]) and verb in ("PING", "INFO"):
            said = {"type": f"io.nats.micro.v1.{verb.lower()}_response", "name": NAME, "id": ID, "version": "1.0.0"}
            said |= {"description": "", "metadata": {"planck": "1"}, "endpoints": [ENDPOINT]}
            await message.respond(json.dumps(said).encode())

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    discovery = await nc.subscribe("$SRV.>", cb=discover)
    await nc.subscribe(f"cancel.{NAME}", cb=cancel)
    calls = await nc.subscribe(ENDPOINT["subject"], queue=NAME, cb=take)
    await send(f"sidecar.{NAME}", type="hello", sidecar=NAME, instance=ID)
    await stop.wait()
    await discovery.unsubscribe()
    await send(f"sidecar.{NAME}", type="bye", sidecar=NAME, instance=ID)
    await calls.drain()
    await asyncio.gather(*tasks)
    await nc.drain()


asyncio.run(main())
