"""A client of the application, without a socket between."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

from tidemill.api.app import create_app
from tidemill.testing.operations import FakeCluster

NOW = 1_772_360_100.25  # 2026-03-01 10:15:00.250


class Client:
    def __init__(self, app: FastAPI, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        self._headers = dict(headers or {})

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:8300", headers=self._headers, verify=False
            ) as client:
                return await client.request(method, path, **more)

        return asyncio.run(request())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.ask("POST", path, json={} if body is None else body)
        assert answer.status_code == status, answer.text
        return answer.json()


def shop(captures: int = 2) -> FakeCluster:
    """With two tables; its time stands still."""
    cluster = FakeCluster(captures, clock=lambda: NOW)
    cluster.add_table("shop", "orders")
    cluster.add_table("shop", "items")
    return cluster


def client_of(cluster: FakeCluster, capture: int = 0, **options: Any) -> Client:
    return Client(create_app(cluster.operations(capture), **options))
