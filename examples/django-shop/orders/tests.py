"""Tests of the shop, by Django's own TestCase: the jobs are in a sandbox and run in the test's own transaction."""

from decimal import Decimal

from django.core import mail
from django.test import TestCase

from holdfast.django import app
from holdfast.testing import sandbox
from orders.models import Order
from orders.tasks import charge, confirm


class OrderTests(TestCase):
    """Each test is rolled back by Django; the sandbox is gone with the `with` block."""

    def setUp(self) -> None:
        self.box = self.enterContext(sandbox(app))

    def test_an_order_is_charged_and_confirmed(self) -> None:
        placed = self.client.post("/orders/", {"email": "ann@example.com", "total": "12.50"})
        pk = placed.json()["order"]
        self.box.assert_enqueued(charge, order=pk, amount=Decimal("12.50"), count=1)
        self.box.drain(inline=True, raises=True)
        self.assertEqual(self.client.get(f"/orders/{pk}/").json()["state"], "paid")
        self.box.assert_enqueued(confirm, order=pk, count=1)
        self.assertEqual([message.to for message in mail.outbox], [["ann@example.com"]])

    def test_an_order_that_is_rolled_back_leaves_no_job(self) -> None:
        with self.assertRaises(ValueError):
            self.client.post("/orders/", {"email": "ann@example.com", "total": "0"})
        self.box.refute_enqueued(charge)
        self.assertEqual(Order.objects.count(), 0)
