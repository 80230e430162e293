"""Names for the admin pages and their permissions. No model here has a table: the jobs are in Holdfast's store."""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """`holdfast.view_job` and `holdfast.change_job`."""

    id = models.CharField(max_length=100, primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "job"


class DeadLetter(models.Model):
    """`holdfast.view_deadletter` and `holdfast.change_deadletter`."""

    id = models.CharField(max_length=100, primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "dead letter"


class CronEntry(models.Model):
    """`holdfast.view_cronentry` and `holdfast.change_cronentry`."""

    name = models.CharField(max_length=200, primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "cron entry"
        verbose_name_plural = "cron entries"
