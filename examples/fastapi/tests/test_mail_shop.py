"""The shop on a real PostgreSQL: `DATABASE_URL=postgresql://… pytest`. Mails and webhooks go to a fake network."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from mail_shop.api import api
from mail_shop.jobs import deliver_webhook, jobs, send_receipt
from mail_shop.settings import settings

from holdfast import State


class Network:
    """Answers requests of the jobs, and remembers them."""

    def __init__(self) -> None:
        self.seen: list[httpx.Request] = []
        self.answers: dict[str, httpx.Response] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return self.answers.get(str(request.url), httpx.Response(200))

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.seen]


@pytest.fixture
def network() -> Iterator[Network]:
    found = Network()
    settings.transport = httpx.MockTransport(found)
    yield found
    settings.transport = None


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(api) as found:
        yield found
        for job in list(jobs.jobs("live")):
            jobs.cancel(job)


def order(client: TestClient, **more: Any) -> Any:
    answer = client.post(
        "/orders",
        json={"tenant": "acme", "email": "ann@example.com", "amount": 500, **more},
        headers={"X-Request-Id": "r-1"},
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_order_sends_a_receipt_and_calls_the_webhook(client: TestClient, network: Network) -> None:
    stored = order(client, webhook="https://acme.example/hook")
    assert client.get(f"/status/{stored['jobs'][0]}").json()["state"] in ("scheduled", "ready")
    assert jobs.work(drain=True).succeeded == 2
    assert client.get(f"/status/{stored['jobs'][0]}").json()["state"] == "succeeded"
    [mail] = [body for body in network.bodies() if "to" in body]
    assert mail["to"] == "ann@example.com"
    sent = {request.headers.get("x-request-id") for request in network.seen}
    assert "r-1" in sent  # the request id came along with the job


def test_a_rejected_order_leaves_no_job(client: TestClient, network: Network) -> None:
    answer = client.post("/orders", json={"tenant": "acme", "email": "ann@example.com", "amount": 0})
    assert answer.status_code == 422
    assert list(jobs.jobs("live")) == []


def test_an_overloaded_tenant_is_asked_again_later_without_spending_a_retry(
    client: TestClient, network: Network
) -> None:
    hook = "https://slow.example/hook"
    network.answers[hook] = httpx.Response(429, headers={"Retry-After": "600"})
    stored = order(client, webhook=hook)
    jobs.work(drain=True)
    job = jobs.job(stored["jobs"][1])
    assert (job.state, job.failures) == (State.SCHEDULED, 0)


def test_a_removed_webhook_is_a_dead_letter_with_its_reason(client: TestClient, network: Network) -> None:
    hook = "https://gone.example/hook"
    network.answers[hook] = httpx.Response(410)
    stored = order(client, webhook=hook)
    jobs.work(drain=True)
    letter = jobs.dead.get(stored["jobs"][1])
    assert letter.error is not None and "removed" in letter.error.text


def test_mails_of_one_tenant_go_one_after_another(client: TestClient) -> None:
    first, second = (send_receipt.bind("acme", number) for number in (1, 2))
    other = send_receipt.bind("ben", 3)
    for call in (first, second, other):
        jobs.enqueue(call)
    assert [jobs.job(call.id).state for call in (first, second, other)] == [State.READY, State.WAITING, State.READY]
    assert deliver_webhook.bind("acme", "https://acme.example", 1).group == "acme"


def test_for_development_the_worker_runs_inside_the_program(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "worker", True)
    with TestClient(api) as client:
        job_id = order(client)["jobs"][0]
        state = ""
        for _ in range(600):  # a minute at most
            state = client.get(f"/status/{job_id}").json()["state"]
            if state == "succeeded":
                break
            threading.Event().wait(0.1)
        assert state == "succeeded"


def test_the_dashboard_is_for_staff(client: TestClient) -> None:
    assert client.get("/jobs/").status_code in (401, 403)
    assert client.get("/jobs/", headers={"X-User": "ann"}).status_code == 200


def test_a_job_that_is_not_there(client: TestClient) -> None:
    assert client.get("/status/nothing").status_code == 404
