"""Cron: entries that make jobs at times, by an expression or every so many seconds.

entry.py says when, tick.py decides what is to be done about it, api.py carries out what operators ask, api.py
is `app.cron`. The worker's ticker fires what is due; the store sees to it that each tick is fired once.
"""
