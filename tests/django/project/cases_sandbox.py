"""The sandbox in Django's tests: it follows transactions, and inline jobs see the test's own rows."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.db.models.signals import post_save
from django.test import TestCase, TransactionTestCase

from holdfast import Holdfast
from holdfast.django import app
from holdfast.testing import sandbox

from .cases_enqueue import Oops
from .shop.models import Order
from .shop.tasks import apay, pay


class Rules:
    """What holds whether the test itself is inside a transaction or not."""

    box: Any
    assertRaises: Any  # noqa: N815
    assertEqual: Any  # noqa: N815

    def test_a_job_is_there_when_its_block_has_ended_well(self) -> None:
        with transaction.atomic():
            pay.enqueue(1)
            app.enqueue_many(pay.bind(n) for n in (2, 3))
            self.assertEqual(self.box.enqueued(), [])
            self.assertEqual(len(self.box.pending(pay)), 3)
        self.assertEqual(len(self.box.assert_enqueued(pay)), 3)
        self.assertEqual(self.box.pending(), [])

    def test_a_rollback_takes_its_jobs_with_it(self) -> None:
        with self.assertRaises(Oops), transaction.atomic():
            pay.enqueue(1)
            raise Oops
        with transaction.atomic():
            pay.enqueue(2)
            with self.assertRaises(Oops), transaction.atomic():
                pay.enqueue(3)
                raise Oops
            with transaction.atomic():
                pay.using(connection=connection).enqueue(4)
        self.assertEqual([job.args["order"] for job in self.box.enqueued()], [2, 4])

    def test_a_hook_at_the_commit_sees_the_jobs_of_the_transaction(self) -> None:
        seen: list[int] = []
        with transaction.atomic():
            transaction.on_commit(lambda: seen.append(len(self.box.enqueued())))
            pay.enqueue(1)
        self.assertEqual(len(self.box.enqueued()), 1)
        self.assertEqual(seen, [] if connection.in_atomic_block else [1])

    def test_inline_a_job_sees_the_rows_of_the_test(self) -> None:
        with transaction.atomic():
            order = Order.objects.create()
            job = pay.enqueue(order.pk)
        self.assertEqual(self.box.drain(inline=True, raises=True).succeeded, 1)
        order.refresh_from_db()
        self.assertEqual((order.state, job.refresh().value), ("paid", "paid"))

    def test_inline_an_async_job_sees_the_rows_of_the_test(self) -> None:
        heard: list[Any] = []

        async def on_save(sender: Any, instance: Any, **_: Any) -> None:
            heard.append(await Order.objects.filter(pk=instance.pk).acount())

        order = Order.objects.create()
        post_save.connect(on_save, sender=Order)
        try:
            jobs = [apay.enqueue(order.pk), apay.enqueue(order.pk)]
            self.assertEqual(self.box.drain(inline=True, raises=True).succeeded, 2)
        finally:
            post_save.disconnect(on_save, sender=Order)
        order.refresh_from_db()
        self.assertEqual((order.state, jobs[1].refresh().value, heard), ("paid", "paid", [1, 1]))

    def test_another_app_in_a_sandbox_takes_djangos_connection_too(self) -> None:
        other = Holdfast("memory://")
        task = other.task(name="other")(pay.fn)
        with sandbox(other) as box:
            with self.assertRaises(Oops), transaction.atomic():
                task.using(connection=connection).enqueue(1)
                raise Oops
            with transaction.atomic():
                task.using(connection=connection).enqueue(2)
            self.assertEqual([job.args["order"] for job in box.enqueued()], [2])


class InTestCase(Rules, TestCase):
    """Django rolls each test back; the sandbox does not wait for that."""

    def setUp(self) -> None:
        self.box = self.enterContext(sandbox(app))

    def test_outside_a_block_a_job_is_there_at_once(self) -> None:
        pay.enqueue(1)
        self.box.assert_enqueued(pay, order=1, count=1)


class InTransactionTestCase(Rules, TransactionTestCase):
    """Real commits and rollbacks."""

    def setUp(self) -> None:
        self.box = self.enterContext(sandbox(app))
