"""Container health checks for programs without a port: `python -m actonce.stack.health worker | ledger`.

`worker`: Temporal has seen a poller of this host on our task queue lately, so the worker works, not just runs.
`ledger`: the ledger answers from here. Exit status 0 healthy, 1 not, with one sentence why.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

import psycopg
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from actonce.leaving import leave
from actonce.stack.temporal import RPC_TIMEOUT

# A long poll lasts up to a minute; a poller not seen for longer has gone.
POLLER_AGE_MAX_S = 90.0


async def worker() -> str | None:
    """None when healthy, else why not."""
    queue = os.environ.get("ACTONCE_TASK_QUEUE", "actonce")
    try:
        client = await Client.connect(**ClientConfig.load_client_connect_config())
        found = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            ),
            timeout=RPC_TIMEOUT,
        )
    except (RPCError, RuntimeError) as error:
        return f"Temporal cannot be asked: {error}"
    host = socket.gethostname()
    ours = [p for p in found.pollers if host in p.identity]
    if not ours:
        return f"nobody on {host} polls {queue}"
    age_s = time.time() - max(p.last_access_time.ToNanoseconds() for p in ours) / 1e9
    return f"the last poll from {host} was {age_s:.0f} s ago" if age_s > POLLER_AGE_MAX_S else None


async def ledger() -> str | None:
    """None when the ledger answers, else why not."""
    try:
        async with await psycopg.AsyncConnection.connect(os.environ["ACTONCE_LEDGER_DSN"], connect_timeout=3) as link:
            await link.execute("SELECT 1")
    except (psycopg.Error, KeyError) as error:
        return f"the ledger cannot be asked: {error!r}"
    return None


CHECKS = {"worker": worker, "ledger": ledger}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in CHECKS:
        print(f"usage: python -m actonce.stack.health {' | '.join(CHECKS)}", file=sys.stderr)
        return 2
    why = asyncio.run(CHECKS[arguments[0]]())
    if why is not None:
        print(why)
    return 0 if why is None else 1


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
