"""What Django code has at hand as arguments: stored as it reads, or refused with advice."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from decimal import Decimal

from django.test import SimpleTestCase
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy, override

from holdfast import ArgumentsRejected

from .shop.models import Order
from .shop.tasks import take

AT = datetime(2026, 11, 17, 12, tzinfo=UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Arguments(SimpleTestCase):
    """Checked when a call is bound; nothing is stored."""

    def test_plain_values_of_django_travel(self) -> None:
        call = take.bind(Decimal("1.10"), AT, ID, mark_safe("<b>"), more={"a": [gettext_lazy("Yes")]})
        given = take._decode(call.new.args)
        self.assertEqual((given["number"], given["at"], given["id"], given["text"]), (Decimal("1.10"), AT, ID, "<b>"))
        with override("de"):
            call = take.bind(Decimal(1), AT, ID, gettext_lazy("Yes"), more=gettext_lazy("No"))
        given = take._decode(call.new.args)
        self.assertEqual((given["text"], given["more"]), ("Ja", "Nein"))

    def test_models_are_refused_with_advice(self) -> None:
        for value in (Order(pk=1), SimpleLazyObject(lambda: Order(pk=1)), [Order(pk=1)]):
            with self.assertRaisesMessage(ArgumentsRejected, "a Django model (Order) cannot be stored: pass the pk"):
                take.bind(Decimal(1), AT, ID, "", more=value)
        with self.assertRaisesMessage(ArgumentsRejected, "a Django QuerySet cannot be stored: pass a list of primary"):
            take.bind(Decimal(1), AT, ID, "", more=Order.objects.all())
        with self.assertRaisesMessage(ArgumentsRejected, "a SimpleLazyObject of Django cannot be stored"):
            take.bind(Decimal(1), AT, ID, "", more=SimpleLazyObject(lambda: 3))
