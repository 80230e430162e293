"""The jobs. Found by Holdfast because the module is called tasks. Arguments are ids and plain values, never models."""

from datetime import timedelta
from decimal import Decimal

from django.core.mail import send_mail
from django.db import transaction
from django.utils import timezone

from holdfast import Context, RetryPolicy
from holdfast.django import app
from orders.models import Order


@app.task(queue="payments", group=lambda order: f"order:{order}", timeout=30, retry=RetryPolicy(limit=5, base=2))
def charge(ctx: Context, order: int, amount: Decimal) -> str:
    """Take the money once: the job's id is the idempotency key. Then confirm the order, in the same transaction."""
    reference = f"payment-{ctx.id[:8]}"
    with transaction.atomic():
        placed = Order.objects.select_for_update().get(pk=order)
        if placed.state != "placed":
            return f"order {order} is {placed.state}"
        placed.state = "paid"
        placed.save(update_fields=["state"])
        confirm.enqueue(order)
    return reference


@app.task(queue="mail", group=lambda order: f"order:{order}")
def confirm(order: int) -> int:
    """Send the confirmation."""
    placed = Order.objects.get(pk=order)
    text = f"We received {placed.total} EUR."
    return int(send_mail(f"Your order {order}", text, "shop@example.com", [placed.email]))


@app.cron("0 3 * * *")
@app.task
def forget_unpaid() -> int:
    """Every night: delete orders that nobody paid for a month."""
    old = Order.objects.filter(state="placed", placed_at__lt=timezone.now() - timedelta(days=30))
    return int(old.delete()[0])
