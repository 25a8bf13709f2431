"""Serving: which block of a cache belongs to whom, and what real traffic asks for.

Knows models and caches. Must not know the clock's numbers, nor any exercise.
"""
