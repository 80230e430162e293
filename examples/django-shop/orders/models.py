"""An order and how far it is."""

from django.db import models


class Order(models.Model):
    """One customer's order."""

    email = models.EmailField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    state = models.CharField(max_length=20, default="placed")
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.email}"
