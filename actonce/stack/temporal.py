"""Temporal's dev server on a file that survives SIGKILL, with its Web UI.

Ready means that a workflow was started, described and handed to a poller: the frontend's port opens, and its health
check is green, before history and matching serve.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Mapping
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DescribeNamespaceRequest,
    DescribeWorkflowExecutionRequest,
    GetSystemInfoRequest,
    PollWorkflowTaskQueueRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from actonce.stack import binaries
from actonce.stack.errors import StackError
from actonce.stack.part import NotReady, Part
from actonce.stack.ports import HOST

NAMESPACE = "default"
SEARCH_ATTRIBUTES = {"ActonceState": "Keyword", "ActonceReason": "Keyword"}
RPC_TIMEOUT = timedelta(seconds=3)
CHECK_TIMEOUT_S = 8.0  # the SDK alone would wait 30 s for a listener that says nothing
# The reviewer opens a run's histories days later; the dev server's own default is one day.
RETENTION_S = 90 * 24 * 3600


PROBLEMS_AFTER = "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute"


class Temporal(Part):
    port_names = ("grpc", "ui", "http", "metrics")
    stop_signal = signal.SIGINT
    ready_within_s = 60.0
    # Histories hold payloads, and root's folder lets others pass through (PostgreSQL's account must).
    umask = 0o077
    dynamic_config: Mapping[str, int] = {}  # server limits that a test moves, to meet them in minutes

    @property
    def address(self) -> str:
        return f"{HOST}:{self.ports['grpc']}"

    @property
    def ui_url(self) -> str:
        return f"http://{HOST}:{self.ports['ui']}"

    def command(self) -> list[str]:
        ports = self.ports
        command = [
            *(str(binaries.temporal()), "server", "start-dev"),
            *("--ip", HOST, "--port", str(ports["grpc"]), "--ui-port", str(ports["ui"])),
            *("--http-port", str(ports["http"]), "--metrics-port", str(ports["metrics"])),
            *("--db-filename", str(self.folder / "temporal.db")),
            # As durable as the default journal, and measured almost as fast as in memory.
            *("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=FULL"),
            # A workflow that its workers cannot continue is reported after two failures (12 s), not five (a minute).
            *("--dynamic-config-value", f"{PROBLEMS_AFTER}=2"),
            *("--ui-disable-news-fetch", "--log-format", "json", "--log-level", "warn"),
        ]
        for name, kind in SEARCH_ATTRIBUTES.items():
            command += ["--search-attribute", f"{name}={kind}"]
        for name, value in self.dynamic_config.items():
            command += ["--dynamic-config-value", f"{name}={value}"]
        return command

    def env(self) -> dict[str, str]:
        # The person's own Temporal settings are about another server.
        return {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}

    async def check_ready(self) -> None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                client = await Client.connect(self.address, namespace=NAMESPACE)
                await start_describe_poll(client)
                missing = await missing_search_attributes(client)
        except (RPCError, RuntimeError, TimeoutError) as error:  # connect raises RuntimeError while nobody listens
            raise NotReady(f"{type(error).__name__}: {error}") from error
        if missing:
            raise NotReady(f"search attributes {', '.join(missing)} are not registered yet")
        await client.workflow_service.update_namespace(
            UpdateNamespaceRequest(
                namespace=NAMESPACE,
                config=NamespaceConfig(workflow_execution_retention_ttl=Duration(seconds=RETENTION_S)),
            ),
            timeout=RPC_TIMEOUT,
        )


async def start_describe_poll(client: Client) -> None:
    """One throw-away workflow: start it, describe it, receive its first task; then it is ended and deleted."""
    service = client.workflow_service
    name = f"actonce-ready-{secrets.token_hex(6)}"
    await service.get_system_info(GetSystemInfoRequest(), timeout=RPC_TIMEOUT)
    await service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace), timeout=RPC_TIMEOUT)
    started = await service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_id=name,
            workflow_type=WorkflowType(name="actonce.ready"),
            task_queue=TaskQueue(name=name),
            request_id=name,
            identity="actonce-ready",
            workflow_execution_timeout=Duration(seconds=60),
        ),
        timeout=RPC_TIMEOUT,
    )
    execution = WorkflowExecution(workflow_id=name, run_id=started.run_id)
    try:
        await service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace=client.namespace, execution=execution),
            timeout=RPC_TIMEOUT,
        )
        task = await service.poll_workflow_task_queue(
            PollWorkflowTaskQueueRequest(
                namespace=client.namespace, task_queue=TaskQueue(name=name), identity="actonce-ready"
            ),
            timeout=RPC_TIMEOUT,
        )
        if task.workflow_execution.workflow_id != name:
            raise NotReady("the first workflow task did not reach its poller yet")
    finally:
        await service.terminate_workflow_execution(
            TerminateWorkflowExecutionRequest(
                namespace=client.namespace,
                workflow_execution=execution,
                reason="readiness probe of the stack",
            ),
            timeout=RPC_TIMEOUT,
        )
        await service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution),
            timeout=RPC_TIMEOUT,
        )


async def missing_search_attributes(client: Client) -> list[str]:
    """Names that our workflows set and the namespace does not know."""
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=RPC_TIMEOUT
    )
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    return [name for name in SEARCH_ATTRIBUTES if known.custom_attributes.get(name) != keyword]


async def check_elsewhere(client: Client) -> None:
    """For a server that is not ours: reachable, namespace there, search attributes there."""
    try:
        await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=RPC_TIMEOUT)
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=RPC_TIMEOUT
        )
        missing = await missing_search_attributes(client)
    except RPCError as error:
        raise StackError(f"Temporal namespace {client.namespace} cannot be used: {error}.") from error
    if missing:
        commands = "; ".join(
            f"temporal operator search-attribute create --name {name} --type Keyword" for name in missing
        )
        raise StackError(f"Temporal namespace {client.namespace} lacks search attributes. Run: {commands}")
