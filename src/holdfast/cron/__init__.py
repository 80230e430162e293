"""Cron: entries that create jobs on a schedule, by cron expression or at a fixed interval.

entry.py computes times, tick.py decides what is due, api.py is `app.cron`: what users see, and operators'
changes. The worker's ticker fires due ticks; the store makes sure that each tick fires once.
"""
