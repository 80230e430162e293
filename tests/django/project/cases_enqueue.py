"""Enqueue inside and outside `atomic()`, with the jobs in Django's own database and in another store."""

from __future__ import annotations

import io
import os
import tempfile
from typing import Any
from unittest import mock, skipIf

from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TransactionTestCase, override_settings

from holdfast import ConfigurationError, DuplicateJob, Holdfast, JobNotFound, SchemaMismatch, StateConflict
from holdfast.django import DeferredJob, app

from .shop.models import Order
from .shop.tasks import acount, pay, ship


class Oops(Exception):
    """Ends a transaction."""


def stored() -> int:
    return sum(sum(states.values()) for states in app.counts().values())


class StoreCase(TransactionTestCase):
    """Each test begins with an empty store."""

    def setUp(self) -> None:
        app.bulk("delete", "")
        self.assertEqual(stored(), 0)

    def drained(self) -> int:
        return app.work(drain=True).succeeded


class SameDatabase(StoreCase):
    """HOLDFAST = {"DATABASE": "default"}."""

    def test_the_store_is_in_the_test_database(self) -> None:
        self.assertIn(str(connection.settings_dict["NAME"]).rpartition("/")[2], app.url)
        self.assertIn("test", app.url)

    def test_a_job_is_there_if_and_only_if_its_transaction_commits(self) -> None:
        with transaction.atomic():
            job = pay.enqueue(Order.objects.create().pk)
            with self.assertRaises(JobNotFound):
                app.job(job.id)
        self.assertNotIsInstance(job, DeferredJob)
        with self.assertRaises(Oops), transaction.atomic():
            lost = pay.enqueue(Order.objects.create().pk)
            raise Oops
        with self.assertRaises(JobNotFound):
            lost.refresh()
        self.assertEqual(self.drained(), 1)
        self.assertEqual(job.refresh().value, "paid")
        self.assertEqual(Order.objects.get().state, "paid")

    def test_a_handler_settles_in_its_own_transaction(self) -> None:
        shipped, lost = ship.enqueue(commits=True), ship.enqueue(commits=False)
        self.assertEqual(self.drained(), 1)
        self.assertEqual((shipped.refresh().value, lost.refresh().state), ("shipped", "dead"))
        self.assertEqual(Order.objects.count(), 1)

    def test_a_rolled_back_savepoint_takes_its_jobs_with_it(self) -> None:
        with transaction.atomic():
            kept = pay.enqueue(1)
            with self.assertRaises(Oops), transaction.atomic():
                lost = pay.enqueue(2)
                raise Oops
        self.assertEqual(app.job(kept.id).args, {"order": 1})
        with self.assertRaises(JobNotFound):
            app.job(lost.id)

    def test_every_way_to_name_the_connection_means_the_same(self) -> None:
        for given in (None, "default", connection, connections["default"]):
            with self.subTest(given), self.assertRaises(Oops), transaction.atomic():
                pay.using(connection=given).enqueue(1)
                app.enqueue(pay.bind(1), connection=given)
                app.enqueue_many(pay.using(connection=given).bind(n) for n in range(3))
                raise Oops
            self.assertEqual(stored(), 0)
            pay.using(connection=given).enqueue(1)  # outside: as usual
            app.enqueue_many(pay.using(connection=given).bind(n) for n in range(3))
            self.assertEqual(stored(), 4)
            app.bulk("delete", "")
        with self.assertRaisesMessage(ConfigurationError, "DATABASES has no such alias. It has: default"):
            pay.using(connection="other").enqueue(1)

    def test_an_app_of_no_django_names_the_one_that_takes_the_connection(self) -> None:
        refused = self.assertRaisesMessage(ConfigurationError, "`from holdfast.django import app`")
        with Holdfast(app.url) as other, transaction.atomic(), refused:
            other.named("pay").using(connection=connection).enqueue(order=1)

    def test_async_code_names_the_connection_of_its_thread(self) -> None:
        async def scene() -> None:
            await pay.aenqueue(1)
            await pay.using(connection="default").aenqueue(2)
            await app.aenqueue_many([pay.using(connection=connection).bind(3)])

        async_to_sync(scene)()
        self.assertEqual(stored(), 3)
        with self.assertRaises(Oops), transaction.atomic():
            async_to_sync(pay.using(connection="default").aenqueue)(4)  # runs in this thread, inside its transaction
            raise Oops
        self.assertEqual(stored(), 3)

    def test_a_duplicate_leaves_the_transaction_usable(self) -> None:
        pay.using(key="one").enqueue(1)
        with transaction.atomic():
            with self.assertRaises(DuplicateJob):
                pay.using(key="one", on_conflict="raise").enqueue(2)
            Order.objects.create()
        self.assertEqual(Order.objects.count(), 1)

    def test_what_cannot_join_waits_for_the_commit(self) -> None:
        debounced = pay.using(key="order", on_conflict="debounce", wait=0.01)
        with transaction.atomic():
            job = debounced.enqueue(1)
            self.assertIsInstance(job, DeferredJob)
        self.assertEqual(job.refresh().args, {"order": 1})

    def test_async_handlers_use_the_database(self) -> None:
        Order.objects.create()
        jobs = [acount.enqueue() for _ in range(5)]
        self.assertEqual(self.drained(), 5)
        self.assertEqual({job.refresh().value for job in jobs}, {1})

    @skipIf("PROJECT_PORT" in os.environ, "LISTEN does not work through pgbouncer: workers poll")
    def test_a_worker_is_woken_by_the_commit(self) -> None:
        """It would look by itself after an hour."""

        def placed() -> Any:
            with transaction.atomic():
                return pay.enqueue(Order.objects.create().pk)

        async def scene() -> None:
            async with app.worker(poll_every=3600.0, sweep_every=3600.0):
                for _ in range(2):
                    job = await sync_to_async(placed)()
                    self.assertEqual(await job.aresult(timeout=120), "paid")

        async_to_sync(scene)()

    def test_migrate_leaves_an_older_store_to_its_own_command(self) -> None:
        told = io.StringIO()
        with mock.patch.object(app, "open", side_effect=SchemaMismatch(1, 2)):
            call_command("migrate", stdout=told)
        self.assertIn("the store has schema 1, this version needs 2", told.getvalue())
        self.assertIn("manage.py holdfast migrate", told.getvalue())

    def test_a_broken_transaction_takes_no_job(self) -> None:
        with self.assertRaises(transaction.TransactionManagementError), transaction.atomic():
            pay.enqueue(1)
            transaction.set_rollback(True)
            pay.enqueue(2)
        self.assertEqual(stored(), 0)


class OtherStore(StoreCase):
    """The jobs live elsewhere: they wait for the commit."""

    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(override_settings(HOLDFAST={"URL": f"sqlite:///{folder}/jobs.db"}))
        self.addCleanup(app.close)
        super().setUp()

    def test_a_job_waits_for_the_commit_and_says_so(self) -> None:
        with transaction.atomic():
            job: Any = pay.enqueue(1)
            self.assertIn("waits for the commit", repr(job))
            self.assertTrue(job.pending)
            for verb in (job.refresh, job.cancel, job.result):
                with self.assertRaisesMessage(StateConflict, "not enqueued yet"):
                    verb()
            self.assertEqual(app.enqueue_many(pay.bind(n) for n in (2, 3)).created, 2)
            self.assertEqual(stored(), 0)
        self.assertFalse(job.pending)
        self.assertEqual(job.refresh().args, {"order": 1})
        self.assertEqual(stored(), 3)

    def test_headers_are_those_of_the_call(self) -> None:
        where = ["call"]
        self.addCleanup(app._hooks.on_enqueue.clear)

        @app.on_enqueue
        def say(call: Any, headers: dict[str, str]) -> None:
            headers["where"] = where[0]

        with transaction.atomic():
            one = pay.enqueue(1)
            app.enqueue_many([pay.bind(2)])
            where[0] = "commit"
        self.assertEqual({job.headers["where"] for job in app.jobs()}, {"call"})
        self.assertEqual(one.refresh().headers, {"where": "call"})

    def test_eager_runs_at_once_inside_a_transaction_too(self) -> None:
        with app.eager(), transaction.atomic():
            self.assertEqual(pay.enqueue(Order.objects.create().pk).value, "paid")

    def test_a_rollback_leaves_nothing(self) -> None:
        with transaction.atomic(), self.assertRaises(Oops), transaction.atomic():
            job: Any = pay.enqueue(1)
            raise Oops
        self.assertTrue(job.pending)
        self.assertEqual(stored(), 0)

    def test_a_key_kept_at_the_commit_shows_the_job_that_has_it(self) -> None:
        first = pay.using(key="one").enqueue(1)
        with transaction.atomic():
            second = pay.using(key="one").enqueue(2)
        self.assertEqual((second.id, second.created), (first.id, False))
