"""Where a service may listen: on this machine, or elsewhere with TLS. There is no other way."""

from __future__ import annotations

import ipaddress
from pathlib import Path


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach this interface. A name other than `localhost` is not believed."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, prefix: str, *, certificate: Path | None, key: Path | None, behind_proxy: bool) -> None:
    """Refuse (ValueError) to listen where tokens and passwords would cross a network as plain text.

    `prefix`: of the settings that the words name, such as `ACTONCE_ENTRY`. `behind_proxy` is a person's word that what
    stands in front speaks TLS; nobody can check it from here.
    """
    if (certificate is None) != (key is None):
        raise ValueError(f"{prefix}_TLS_CERT and {prefix}_TLS_KEY go together: set both or none")
    for name, file in (("CERT", certificate), ("KEY", key)):
        if file is not None and not file.is_file():
            raise ValueError(f"{prefix}_TLS_{name}: there is no file {file}")
    if certificate is None and not behind_proxy and not is_loopback(host):
        raise ValueError(
            f"{prefix}_HOST {host} is reached from other machines, and tokens would travel as plain text. Set "
            f"{prefix}_TLS_CERT and {prefix}_TLS_KEY, or {prefix}_BEHIND_TLS_PROXY=true where a proxy in front speaks "
            f"TLS and nobody can get past it, or leave {prefix}_HOST at 127.0.0.1"
        )
