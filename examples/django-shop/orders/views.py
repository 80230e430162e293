"""Placing an order, and looking at it."""

from decimal import Decimal

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.models import Order
from orders.tasks import charge


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store the order and its job in one transaction."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"], total=Decimal(request.POST["total"]))
        job = charge.enqueue(order.pk, order.total)
        if order.total <= 0:
            raise ValueError("an order costs something")
    return JsonResponse({"order": order.pk, "job": job.id}, status=201)


@require_GET
def show_order(request: HttpRequest, pk: int) -> JsonResponse:
    """How far the order is."""
    order = Order.objects.get(pk=pk)
    return JsonResponse({"order": order.pk, "state": order.state})
