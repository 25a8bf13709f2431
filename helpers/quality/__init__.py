"""Quality: what a cache that forgets or rounds does to the model's answers.

Knows models and caches. Must not know how long anything takes, nor any exercise.
"""
