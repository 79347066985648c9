"""Settings of the console, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from actonce.contracts.binding import check_binding
from actonce.contracts.people import Role
from actonce.deployment import DeploymentSettings

if TYPE_CHECKING:
    from actonce.console.provider import ProviderTerms


class ConsoleSettings(DeploymentSettings):
    """What the console needs to know."""

    console_url: str | None = Field(default=None, description="where people find it; its port is used")
    console_host: str = Field(default="127.0.0.1", description="interface to listen on")
    console_tls_cert: Path | None = Field(default=None, description="PEM file: certificate, and those that signed it")
    console_tls_key: Path | None = Field(default=None, description="PEM file: its private key")
    console_behind_tls_proxy: bool = Field(default=False, description="what stands in front speaks TLS with browsers")
    console_port: int | None = Field(default=None, ge=0, le=65535, description="0: the operating system chooses")

    console_token: SecretStr | None = Field(
        default=None, description="opens the entry service for whoever is signed in (scope `act_for`)"
    )
    entry_url: str | None = Field(default=None, description="the entry service, through which it acts")

    console_oidc_issuer: str | None = Field(default=None, description="identity provider that may sign people in too")
    console_oidc_client_id: str | None = None
    console_oidc_client_secret: SecretStr | None = Field(default=None, description="none: PKCE alone")
    console_oidc_roles: dict[str, Role] = Field(
        default_factory=dict, description='JSON: value of the roles claim to role, as {"on-call": "operator"}'
    )
    console_oidc_roles_claim: str = "groups"
    console_oidc_name_claim: str = "preferred_username"

    @model_validator(mode="after")
    def _not_in_the_open(self) -> ConsoleSettings:
        check_binding(
            self.console_host,
            "ACTONCE_CONSOLE",
            certificate=self.console_tls_cert,
            key=self.console_tls_key,
            behind_proxy=self.console_behind_tls_proxy,
        )
        _ = self.provider  # half of it set is told at the start
        return self

    @property
    def provider(self) -> ProviderTerms | None:
        """What is agreed with the identity provider. Raises ValueError where half of it is set."""
        if self.console_oidc_issuer is None:
            return None
        from actonce.console.provider import ProviderTerms  # a tenth of a second that few consoles need

        if not self.console_oidc_client_id or not self.console_oidc_roles:
            raise ValueError(
                "ACTONCE_CONSOLE_OIDC_ISSUER is set: set ACTONCE_CONSOLE_OIDC_CLIENT_ID, and ACTONCE_CONSOLE_OIDC_ROLES"
                " too, or nobody whom it vouches for may do anything"
            )
        secret = self.console_oidc_client_secret
        return ProviderTerms(
            issuer=self.console_oidc_issuer,
            client_id=self.console_oidc_client_id,
            client_secret=secret.get_secret_value() if secret else None,
            roles=self.console_oidc_roles,
            roles_claim=self.console_oidc_roles_claim,
            name_claim=self.console_oidc_name_claim,
        )

    @property
    def address(self) -> tuple[str, int]:
        """(interface, port) to listen on: ACTONCE_CONSOLE_PORT, else the port of ACTONCE_CONSOLE_URL, else any."""
        if self.console_port is not None:
            return self.console_host, self.console_port
        port = urlsplit(self.console_url).port if self.console_url else None
        return self.console_host, port or 0
