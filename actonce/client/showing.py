"""How a task and an operation are printed for people."""

from __future__ import annotations

import json
from typing import Any

from actonce.client.base import VERDICTS_SHOWN_MAX, at, escape, out


def show_task(task: dict[str, Any]) -> None:
    out.print(f"[bold]{escape(task['task_id'])}[/bold]  {task['state']} since {at(task['since'])}")
    out.print(f"  {escape(task['why'])}")
    for use in task["memory"]:
        _memory(use)
    for operation in task["operations"]:
        summary(operation)
    if task["outcome"]:
        out.print(f"  outcome: {escape(task['outcome'].get('summary', ''))}")
    for step in task["what_to_do"]:
        out.print(f"  do: {escape(step)}")
    if task["workflow"]["ui"]:
        out.print(f"  Temporal UI: {task['workflow']['ui']}")


def _memory(use: dict[str, Any]) -> None:
    told = {"found": f"found {use['items']}", "unavailable": f"unavailable, {use['trouble']}: {use['words']}"}
    said = escape(told.get(use["status"], use["status"]))
    waiting = "" if use["status"] != "unavailable" else "; waits" if use["waits"] else "; went on without"
    out.print(f"  {escape(use['step'])}: memory {said}{waiting} ({at(use['at'])})")


def summary(o: dict[str, Any]) -> None:
    facts = (f"{name} {at(o['facts'][name]) or 'not established'}" for name in ("issued", "committed", "acknowledged"))
    where = f"{escape(o['action'])} at {escape(o['destination'])}"
    out.print(f"  {escape(o['step'])}: [bold]{o['state']}[/bold]  {where}  {o['operation_id']}")
    out.print(f"    {', '.join(facts)}")
    if o["object_id"]:
        out.print(f"    {escape(o['object_id'])}, by {o['completion'] or 'no evidence yet'}")
    if o["hold"]:
        out.print(f"    held since {at(o['hold']['opened_at'])}: {o['hold']['reason']}: {escape(o['hold']['words'])}")
    if o["state"] not in ("committed", "refused", "closed"):
        out.print(f"    {o['may_commit']}")


def show_operation(record: dict[str, Any]) -> None:
    summary(record)
    out.print(f"    tenant {escape(record['tenant'])}, task {escape(record['task_id'])}")
    out.print(f"    epoch {record['epoch']}, version {record['version']}, digest {record['payload_digest']}")
    out.print(f"    payload {escape(json.dumps(record['payload'], ensure_ascii=False))}")
    for a in record["attempt_records"]:
        said = a["outcome"] or "no outcome recorded"
        out.print(f"    attempt {a['epoch']}.{a['attempt']}  key {a['wire_key']}  until {at(a['not_after'])}: {said}")
    for k in record["acknowledgements"]:
        odd = ", contradicts what was known" if k["contradicts"] else ""
        out.print(
            f"    acknowledged {at(k['at'])}: {escape(k['object_id'])} (attempt {k['epoch']}.{k['attempt']}{odd})"
        )
    for v in record["verdicts"][:VERDICTS_SHOWN_MAX]:
        _verdict(v)
    for d in record["decisions"]:
        said = d["result"] or "not consumed yet"
        out.print(f"    decision {d['decision_id']}: {d['decision']} by {escape(d['name'])}: {said}")
        if d["second_at"]:
            verb = "agreed" if d["second_agrees"] else "declined"
            out.print(f"      {escape(d['second_name'])} {verb} {at(d['second_at'])}: {escape(d['second_why'] or '')}")
    for step in record["what_to_do"]:
        out.print(f"  do: {escape(step)}")


def _verdict(v: dict[str, Any]) -> None:
    reason = f" ({v['reason']})" if v["reason"] else ""
    out.print(f"    verdict {at(v['at'])}: {v['outcome']}{reason}: {escape(v['words'])}")
    for r in v["readings"]:
        total = "" if r["declared_total"] is None else f" of {r['declared_total']} declared"
        whole = "complete" if r["complete"] else "not complete"
        trouble = escape(r["error"] or "")
        out.print(f"      {escape(r['route'])}: {r['status']}, {r['rows_received']} rows{total}, {whole}  {trouble}")
