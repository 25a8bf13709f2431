"""KV caches: each stores what attention needs and answers a query. `base` states the seam that all of them keep.

Knows kernels and the shapes of models. Must not know the decoder that calls it, nor who times it.
"""

from helpers.caches.base import CacheFull, KVCache
from helpers.caches.full import FullCache
from helpers.caches.latent import LatentCache
from helpers.caches.paged import BlockPool, PagedCache
from helpers.caches.prefix import SharedPrefixCache
from helpers.caches.probe import AttentionProbe
from helpers.caches.quantized import Fp8Cache, Int4ChannelCache, Int4TokenCache, Int8Cache, RoundTripCache
from helpers.caches.sink import SinkBuffers, SinkCache
from helpers.caches.static import StaticCache

__all__ = [
    "AttentionProbe",
    "BlockPool",
    "CacheFull",
    "Fp8Cache",
    "FullCache",
    "Int4ChannelCache",
    "Int4TokenCache",
    "Int8Cache",
    "KVCache",
    "LatentCache",
    "PagedCache",
    "RoundTripCache",
    "SharedPrefixCache",
    "SinkBuffers",
    "SinkCache",
    "StaticCache",
]
