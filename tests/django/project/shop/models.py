"""One model, for rows that jobs read and write."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order."""

    state = models.CharField(max_length=20, default="placed")
