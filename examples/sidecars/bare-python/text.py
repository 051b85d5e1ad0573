"""A sidecar on the bare NATS client, with a tool that may run for long, and everything the protocol requires."""

import asyncio, json, os, signal, uuid, nats

NAME, ID = "text-bare-python", uuid.uuid4().hex
SCHEMA = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}, "seconds": {"type": "number"}}}
TOOL = {"kind": "tool", "description": "Shouts a text.", "parameters": json.dumps(SCHEMA), "effect": "pure"}
ENDPOINT = {"name": "shout", "subject": f"tool.{NAME}.shout", "queue_group": NAME, "metadata": TOOL}
SERVICE = {"name": NAME, "id": ID, "version": "1.0.0", "metadata": {"planck": "1"}, "endpoints": [ENDPOINT]}
running, epochs = {}, {}


async def shout(text, seconds=0):
    await asyncio.sleep(seconds)
    return str.upper(text)  # raises an error if it is not a text


async def main():
    async def send(subject, **said):
        await nc.publish(subject, json.dumps({"v": 1, **said}).encode())

    async def answer(message, call_id=None):
        try:
            call = json.loads(message.data)
            latest = epochs[call["agent_id"]] = max(call["epoch"], epochs.get(call["agent_id"], 0))
            if call["epoch"] < latest:
                raise ValueError("stale epoch: another node has taken over this agent")
            if call["call_id"] in running:
                raise ValueError("in progress")
            running[call_id := call["call_id"]] = asyncio.current_task()
            await send(message.reply, ok=await asyncio.wait_for(shout(**call["args"]), call["deadline_ms"] / 1000))
        except (Exception, asyncio.CancelledError) as error:  # for instance if the answer is too large for NATS
            await send(message.reply, error=str(error) or type(error).__name__)
        running.pop(call_id, None)

    async def take(message):
        if message.reply:
            tasks.create_task(answer(message))

    async def cancel(message):
        if task := running.get(json.loads(message.data).get("call_id")):
            task.cancel()

    async def discover(message):
        await message.respond(json.dumps({"type": "io.nats.micro.v1.info_response", **SERVICE}).encode())

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, (stop := asyncio.Event()).set)
    async with await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1) as nc, asyncio.TaskGroup() as tasks:
        for subject, heard in (f"cancel.{NAME}", cancel), ("$SRV.INFO", discover), (f"$SRV.INFO.{NAME}", discover):
            await nc.subscribe(subject, cb=heard)
        calls = await nc.subscribe(ENDPOINT["subject"], queue=NAME, cb=take)
        await send(f"sidecar.{NAME}", type="hello", sidecar=NAME, instance=ID)
        await stop.wait()  # after it, requests under way are still taken, and the task group waits for their answers
        await send(f"sidecar.{NAME}", type="bye", sidecar=NAME, instance=ID)
        # Alone, `drain` sends its PING before its UNSUB, and loses calls that come in between.
        await nc._send_unsubscribe(calls._id), await nc.flush(), await calls.drain()


asyncio.run(main())
