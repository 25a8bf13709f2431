"""The clock: what a device can do, how long real decode steps take on it, and recordings of both.

Knows models and caches. Must not know what a measurement is good for: no exercise, no price, no quality.
"""
