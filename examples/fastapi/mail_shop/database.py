"""The shop's own tables. The jobs live in the same database, in a schema of their own."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .settings import settings


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    email: Mapped[str]
    amount: Mapped[int]
    receipt_sent: Mapped[bool] = mapped_column(default=False)


class Database:
    """An engine and its sessions; one per event loop: one of the web program, one of each runner of the worker."""

    def __init__(self) -> None:
        self.engine: AsyncEngine = create_async_engine(settings.engine_url)
        self.sessions = async_sessionmaker(self.engine, class_=AsyncSession, expire_on_commit=False)

    async def create_tables(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    async def close(self) -> None:
        await self.engine.dispose()
