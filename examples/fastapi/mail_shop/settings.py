"""What differs between production, development and tests."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import httpx


@dataclass
class Settings:
    """Read from the environment; tests make their own."""

    database: str = field(default_factory=lambda: os.environ.get("DATABASE_URL", "postgresql://localhost/mail_shop"))
    worker: bool = field(
        default_factory=lambda: os.environ.get("RUN_WORKER") == "1"
    )  # jobs in this process, for development
    mail_api: str = "https://mail.example/send"
    transport: httpx.AsyncBaseTransport | None = None  # where requests of the jobs go; None: the network

    @property
    def engine_url(self) -> str:
        """For SQLAlchemy, which wants to know the driver."""
        return self.database.replace("postgresql://", "postgresql+psycopg://", 1)


settings = Settings()
