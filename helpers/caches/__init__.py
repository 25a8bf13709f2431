"""KV caches: each stores what attention needs and answers a query. `base` states the seam that all of them keep."""

from helpers.caches.base import CacheFull, KVCache
from helpers.caches.full import FullCache

__all__ = ["CacheFull", "FullCache", "KVCache"]
