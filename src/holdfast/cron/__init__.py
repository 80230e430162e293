"""Cron: entries that make jobs at times, by an expression or every so many seconds.

entry.py says when, ticking.py decides what is to be done about it, changing.py carries out what operators ask, face.py
is `app.cron`. The worker's ticker fires what is due; the store sees to it that each tick is fired once.
"""
