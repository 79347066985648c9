"""Free TCP ports on 127.0.0.1, from the operating system, never a default.

A port is free when it is given, not for ever: whoever starts a server on it must notice a lost race (the server
ends early and the port is taken) and ask again.
"""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Distinct free ports: all are bound before any is released, so the kernel cannot repeat itself."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for sock in held:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


def is_free(port: int) -> bool:
    """True when a server could listen on the port now (connections in TIME_WAIT do not count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """True when somebody listens on the port. Connects, so it cannot take the port from anyone."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(1)
        return sock.connect_ex((HOST, port)) == 0


def listening(pid: int) -> set[int]:
    """The TCP ports on which this very process listens (none when it is gone)."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return set()
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
