"""The three names of the admin pages, with their permissions; creates no table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: list[tuple[str, str]] = []

    operations = [
        migrations.CreateModel(
            name="CronEntry",
            fields=[
                ("name", models.CharField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "cron entry",
                "verbose_name_plural": "cron entries",
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.CharField(max_length=100, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "dead letter",
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.CharField(max_length=100, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "job",
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
    ]
