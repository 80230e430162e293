"""Django Tasks on Holdfast's backend, with a real worker: attempts, errors, signals, results, transactions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import skipIf

from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import SimpleTestCase, override_settings
from django.utils import timezone

import django
from holdfast import State
from holdfast.django import app

from .cases_enqueue import Oops, StoreCase, stored
from .shop.models import Order

if django.VERSION >= (6, 0):
    from django.tasks import TaskResultStatus, default_task_backend, task_backends
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started

    from .shop import tasks

OLD = django.VERSION < (6, 0)


class Heard:
    """The signals that were sent, with the state of the result at that moment."""

    def __init__(self, case: Any) -> None:
        self.seen: list[tuple[str, str, int]] = []
        for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):
            receiver = self._receiver(name)
            signal.connect(receiver, weak=False)
            case.addCleanup(signal.disconnect, receiver)

    def _receiver(self, name: str) -> Any:
        def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
            self.seen.append((name, str(task_result.status), task_result.attempts))

        return receive


@skipIf(OLD, "Django Tasks came with Django 6")
class Tasks(StoreCase):
    """Tasks of Django are tasks of the app."""

    def test_the_backend_supports_everything(self) -> None:
        for flag in ("defer", "async_task", "get_result", "priority"):
            self.assertIs(getattr(default_task_backend, f"supports_{flag}"), True)
        self.assertEqual(app.tasks["tests.django.project.shop.tasks.add"].options.queue, "default")
        self.assertEqual(list(default_task_backend.check()), [])

    def test_sync_and_async_tasks_run_and_their_results_are_kept(self) -> None:
        heard = Heard(self)
        results = [tasks.add.enqueue(1, other=2), async_to_sync(tasks.aadd.aenqueue)(1)]
        self.assertEqual(app.work(drain=True).succeeded, 2)
        for result, value in zip(results, (3, 2), strict=True):
            result.refresh()
            self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, value))
            self.assertLessEqual(result.started_at, result.finished_at)
            self.assertEqual(async_to_sync(result.task.aget_result)(result.id), result)
        self.assertEqual(
            sorted(heard.seen),
            [("enqueued", "READY", 0)] * 2 + [("finished", "SUCCESSFUL", 1)] * 2 + [("started", "RUNNING", 1)] * 2,
        )

    def test_retries_are_attempts_of_one_result(self) -> None:
        heard = Heard(self)
        tasks.runs.clear()
        result = tasks.second_time_lucky.enqueue()
        app.work(drain=True)
        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.READY, 1))
        [error] = result.errors
        self.assertEqual((error.exception_class, error.traceback[-20:]), (ValueError, "ValueError: not yet\n"))
        self.assertNotEqual(result.worker_ids, ["unknown"])
        app.run_now(result.id)
        app.work(drain=True)
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, [1, 2]))
        self.assertEqual((len(result.worker_ids), len(result.errors)), (2, 1))
        self.assertLess(result.started_at, result.last_attempted_at)
        told = [("enqueued", "READY", 0), ("started", "RUNNING", 1), ("started", "RUNNING", 2)]
        self.assertEqual(heard.seen, [*told, ("finished", "SUCCESSFUL", 2)])

    def test_a_task_that_fails_for_good_is_a_dead_letter(self) -> None:
        heard = Heard(self)
        result = tasks.never.enqueue()
        with self.assertLogs("django.tasks", level="ERROR") as logged:
            app.work(drain=True)
        self.assertIn("ValueError: not here", logged.output[0])
        result.refresh()
        self.assertEqual((result.status, result.backend), (TaskResultStatus.FAILED, "once"))
        self.assertEqual(heard.seen[-1], ("finished", "FAILED", 1))
        self.assertEqual(len([name for name, _, _ in heard.seen if name == "finished"]), 1)
        self.assertEqual(app.dead.get(result.id).reason, "failed")

    def test_a_task_that_dies_without_an_exception_of_its_own_is_finished_too(self) -> None:
        heard = Heard(self)
        result = tasks.wait_for_ever.enqueue()
        app.work(drain=True)
        result.refresh()
        self.assertEqual((result.status, result.errors[0].exception_class), (TaskResultStatus.FAILED, TimeoutError))
        told = [("enqueued", "READY", 0), ("started", "RUNNING", 1), ("finished", "FAILED", 1)]
        self.assertEqual(heard.seen, told)

    def test_queue_priority_and_run_after_are_the_jobs(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(queue_name="reports", priority=7, run_after=later).enqueue(1)
        job = app.job(result.id)
        self.assertEqual((job.queue, job.priority, job.state), ("reports", 7, State.SCHEDULED))
        self.assertAlmostEqual(job.due_at.timestamp(), later.timestamp(), places=3)
        self.assertEqual(default_task_backend.get_result(result.id).task, result.task)
        self.assertEqual(app.served_queues(), ["default", "reports"])
        app.run_now(result.id)
        self.assertEqual(app.work(drain=True).succeeded, 1)
        with self.assertRaisesMessage(InvalidTask, "Queue 'other' is not valid"):
            tasks.add.using(queue_name="other")

    def test_a_task_follows_the_transaction(self) -> None:
        with transaction.atomic():
            order = Order.objects.create()
            result = tasks.set_paid.enqueue(order.pk)
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(result.id)
        with self.assertRaises(Oops), transaction.atomic():
            tasks.set_paid.enqueue(order.pk)
            raise Oops
        self.assertEqual(stored(), 1)
        app.work(drain=True)
        order.refresh_from_db()
        self.assertEqual(order.state, "paid")

    def test_jobs_of_others_are_no_results(self) -> None:
        from .shop.tasks import pay

        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(pay.enqueue(1).id)


@skipIf(OLD, "Django Tasks came with Django 6")
class Options(SimpleTestCase):
    """TASKS[…]["OPTIONS"]."""

    def test_a_mistake_is_named(self) -> None:
        for options, said in (({"retri": 1}, "retri"), ({"queue": "x"}, "queue is not an option of a backend")):
            wrong = {"default": {"BACKEND": "holdfast.django.TasksBackend", "OPTIONS": options}}
            with override_settings(TASKS=wrong), self.assertRaisesMessage(InvalidTaskBackend, said):
                task_backends["default"]
