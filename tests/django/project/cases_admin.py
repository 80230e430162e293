"""The admin pages: who may see, who may change, and that looking changes nothing."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client, TransactionTestCase

from holdfast import State
from holdfast.django import app
from holdfast.django.admin import PAGE_ROWS

from .shop.tasks import fail, pay

JOBS, LETTERS, CRON = ("/admin/holdfast/job/", "/admin/holdfast/deadletter/", "/admin/holdfast/cronentry/")


def login(*permissions: str, superuser: bool = False) -> Any:
    user = User.objects.create(username="-".join(permissions) or "root", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


class Admin(TransactionTestCase):
    """Pages over the real store."""

    def setUp(self) -> None:
        call_command("migrate", verbosity=0)  # an earlier test's flush took the permissions away
        app.bulk("delete", "")
        self.dead = fail.enqueue("sesame")
        app.work(drain=True)
        self.ready = pay.enqueue(1)

    def test_pages_list_filter_and_link_to_the_dashboard(self) -> None:
        client = login(superuser=True)
        self.assertContains(client.get("/admin/"), JOBS)
        page = client.get(JOBS)
        self.assertContains(page, self.dead.id)
        self.assertContains(page, self.ready.id)
        self.assertContains(page, "https://jobs.example.com/")
        page = client.get(JOBS, {"q": "state:dead"})
        self.assertContains(page, self.dead.id)
        self.assertNotContains(page, self.ready.id)
        self.assertContains(client.get(JOBS, {"q": "state:deda"}), "Did you mean")
        page = client.get(f"{JOBS}{self.dead.id}/")
        self.assertContains(page, "out of stock")
        self.assertContains(page, f"https://jobs.example.com/job?id={self.dead.id}")
        self.assertNotContains(page, "sesame")  # the argument is called a token
        self.assertEqual(client.get(f"{JOBS}nobody/").status_code, 404)
        self.assertContains(client.get(LETTERS), self.dead.id)
        self.assertContains(client.get(f"{LETTERS}{self.dead.id}/"), "Revive")
        self.assertContains(client.get(CRON), "nightly")

    def test_dead_letters_come_in_pages(self) -> None:
        app.enqueue_many(fail.bind(str(n)) for n in range(PAGE_ROWS + 1))
        app.work(drain=True)
        client = login(superuser=True)
        newest = [letter.id for letter in app.dead.list(limit=1000)]
        self.assertEqual(len(newest), PAGE_ROWS + 2)
        first = client.get(LETTERS)
        self.assertContains(first, newest[PAGE_ROWS - 1])
        self.assertNotContains(first, newest[PAGE_ROWS])
        self.assertContains(first, f"after={PAGE_ROWS}")
        second = client.get(LETTERS, {"after": str(PAGE_ROWS)})
        self.assertContains(second, newest[-1])
        self.assertNotContains(second, newest[PAGE_ROWS - 1])
        self.assertNotContains(second, "after=")
        self.assertContains(client.get(LETTERS, {"after": "<x>"}), newest[0])

    def test_verbs_change_the_store(self) -> None:
        client = login(superuser=True)
        client.post(LETTERS, {"verb": "revive", "chosen": [self.dead.id]})
        self.assertEqual(self.dead.refresh().state, State.READY)
        self.assertIn("admin root", [entry.by for entry in app.history(self.dead)])
        client.post(f"{JOBS}{self.ready.id}/", {"verb": "cancel"})
        self.assertEqual(self.ready.refresh().state, State.CANCELLED)
        name = "tests.django.project.shop.tasks.nightly"
        client.post(f"{CRON}{name}/", {"verb": "pause"})
        self.assertEqual(app.cron.get(name).paused_by, "admin root")
        client.post(CRON, {"verb": "resume", "chosen": [name]})
        self.assertIsNone(app.cron.get(name).paused_at)
        again = client.post(f"{JOBS}{self.ready.id}/", {"verb": "run_now"}, follow=True)
        self.assertContains(again, "it is cancelled. Only scheduled jobs")

    def test_permissions_are_respected(self) -> None:
        for page in (JOBS, f"{JOBS}{self.dead.id}/", LETTERS, CRON):
            self.assertEqual(login("view_user").get(page).status_code, 403)
            User.objects.all().delete()
            self.assertEqual(Client().get(page).status_code, 302)  # to the login
        viewer = login("view_job", "view_deadletter")
        self.assertNotContains(viewer.get(f"{LETTERS}{self.dead.id}/"), "Revive")
        for page in (LETTERS, f"{LETTERS}{self.dead.id}/"):
            self.assertEqual(viewer.post(page, {"verb": "revive", "chosen": [self.dead.id]}).status_code, 403)
        self.assertEqual(self.dead.refresh().state, State.DEAD)
        changer = login("change_deadletter")
        changer.post(LETTERS, {"verb": "revive", "chosen": [self.dead.id]})
        self.assertEqual(self.dead.refresh().state, State.READY)
        self.assertEqual(changer.get(JOBS).status_code, 403)

    def test_a_get_changes_nothing_and_a_post_needs_its_token(self) -> None:
        client = login(superuser=True)
        client.get(LETTERS, {"verb": "revive", "chosen": self.dead.id})
        client.get(f"{LETTERS}{self.dead.id}/", {"verb": "revive"})
        self.assertEqual(client.post(LETTERS, {"verb": "drop", "chosen": [self.dead.id]}).status_code, 405)
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="root"))
        self.assertEqual(strict.post(f"{LETTERS}{self.dead.id}/", {"verb": "revive"}).status_code, 403)
        self.assertEqual(self.dead.refresh().state, State.DEAD)
