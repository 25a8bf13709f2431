"""Models: their shapes, what these cost in bytes and FLOPs, and a decoder that runs them, on real weights or synthetic.

Knows kernels and data. Must not know how a cache stores what it is given, nor that anybody times or grades a step.
"""
