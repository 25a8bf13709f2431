"""Check the CUDA kernels on a real GPU and record how fast they are: `make gpu-check`, or without the course installed

    python -m tools.gpu_check                    # needs only torch, triton and numpy; under 8 minutes on one H200
    python -m tools.gpu_check --toy              # the same logic without a GPU, in Triton's interpreter, sizes of a toy

First every cache layout against float64; then, with synthetic weights and caches in real geometries, prefill, decode
against context and batch, attention alone and whole steps in every precision and with MHA, GQA, MQA and MLA, and a
shared prefix read once. Bandwidths stand beside that of a copy in the same run. Writes one recording
(`helpers.clock.recordings`).
"""

import argparse
import contextlib
import functools
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

if "--toy" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import numpy
import torch
import triton

from helpers import kernels
from helpers.caches import Fp8Cache, FullCache, Int4TokenCache, Int8Cache, LatentCache, StaticCache
from helpers.clock import devices, graphs, recordings, sweeps, timing
from helpers.kernels import cuda
from helpers.models import counts, geometry, sizing
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry
from tools import attention_cases, gpu_caches

round_up = cuda.CAPABILITIES.rounded  # tokens of a cache that the kernels read


@dataclass(frozen=True)
class Plan:
    """What is measured, and how large."""

    dtypes: tuple[torch.dtype, ...]  # of the comparison with float64
    cases: tuple[str, ...] | None  # which of them; None: all
    dtype: torch.dtype  # of weights and activations in what is timed
    models: tuple[Geometry, ...]  # the largest that fits is taken
    sliced: Geometry | None  # too large: timed as a slice
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    batch_context: int  # tokens of each sequence while the batch grows
    prompts: tuple[int, ...]
    latents: tuple[tuple[str, int, int, int], ...]  # (name, query heads, rank, rotary)
    prefix: int  # tokens that are shared
    own: int  # tokens beside them
    unit: Geometry  # what the units run, in float32
    unit_contexts: tuple[int, ...]
    step_batches: tuple[int, ...]  # of the steps over quantised caches and of those that the units run
    seconds_per_point: float
    samples: int
    copy_bytes: int
    minutes: float


REAL = Plan(
    dtypes=(torch.bfloat16, torch.float16),
    cases=None,
    dtype=torch.bfloat16,
    models=tuple(geometry.get(name) for name in sizing.FAMILY),
    sliced=geometry.get("Llama-3.1-70B"),
    contexts=(16, 1024, 8192, 32_768, 131_072),
    batches=(1, 4, 16, 64),
    batch_context=8192,
    prompts=(512, 2048, 8192),
    latents=(("DeepSeek-V2-Lite", 16, 512, 64), ("DeepSeek-V3", 128, 512, 64)),
    prefix=8192,
    own=512,
    unit=geometry.get("SmolLM2-135M"),
    unit_contexts=(16, 2048, 8192, 32_768),
    step_batches=(1, 16),
    seconds_per_point=0.3,
    samples=20,
    copy_bytes=2 * 2**30,
    minutes=7.0,
)
TOY = Plan(
    dtypes=(torch.float16,),
    cases=("gqa", "int4, groups"),
    dtype=torch.float16,
    models=(Geometry("toy", layers=1, hidden=64, q_heads=4, kv_heads=2, head_dim=32, intermediate=64, vocab=64),),
    sliced=Geometry("toy, sliced", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=32, intermediate=64, vocab=64),
    contexts=(3, 60),
    batches=(1, 2),
    batch_context=40,
    prompts=(8,),
    latents=(("toy latent", 4, 32, 16),),
    prefix=64,
    own=10,
    unit=Geometry("toy", layers=1, hidden=64, q_heads=4, kv_heads=2, head_dim=32, intermediate=64, vocab=64),
    unit_contexts=(3, 60),
    step_batches=(1, 2),
    seconds_per_point=1e-6,
    samples=1,
    copy_bytes=2**20,
    minutes=7.0,
)


def plan_for(device: torch.device) -> Plan:
    """What is measured on a GPU, in a 16-bit type that it has hardware for."""
    half = kernels.half(device)
    return REAL if half == REAL.dtype else replace(REAL, dtypes=(half,), dtype=half)


class Check:
    """One run: what it measures goes into `recording`, what goes wrong into `failures`."""

    def __init__(self, plan: Plan, device: torch.device):
        self.plan, self.device, self.on_gpu = plan, device, device.type == "cuda"
        # The times of a rehearsal mean nothing, so it need not wait until nobody else is timing.
        lock = timing.device_lock if self.on_gpu else lambda _: contextlib.nullcontext()
        self.clock = timing.Clock(device, lock=lock)
        self.backend = None if self.on_gpu else "reference"  # of everything around the kernels that are checked
        self.started = time.perf_counter()
        self.failures: list[str] = []
        card = devices.measure_card(device, self.clock, seconds=5.0 if self.on_gpu else 0.1)
        card.show()
        self.read_bytes_per_second = card.read_bytes_per_second
        versions = {"torch": torch.__version__, "triton": triton.__version__, "numpy": numpy.__version__}
        machine = {"cpu_threads": torch.get_num_threads()}
        if self.on_gpu:
            properties = torch.cuda.get_device_properties(device)
            versions["cuda"] = torch.version.cuda
            machine |= {
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "capability": f"{properties.major}.{properties.minor}",
            }
        self.recording = recordings.new(
            f"{recordings.slug(card.name)}-gpu-check", card.name, device.type, asdict(card), versions, machine
        )
        self.copy_bytes_per_second = self._copy_rate()
        self.recording.card["copy_bytes_per_second"] = self.copy_bytes_per_second
        print(f"A copy moves {self.copy_bytes_per_second / 1e9:,.0f} GB/s, bytes read and written counted.")

    def section(self, title: str, run: Callable[[], None]) -> None:
        """Run one part; running out of memory or of time leaves it out, an error is noted, and the rest goes on."""
        minutes = (time.perf_counter() - self.started) / 60
        print(f"\n== {title}   ({minutes:.1f} min)", flush=True)
        if minutes > self.plan.minutes:
            self.note(f"{title}: left out, for {self.plan.minutes} minutes were up")
            return
        try:
            run()
        except (torch.OutOfMemoryError, sizing.NothingFits) as error:
            self.note(f"{title}: left out, not enough memory ({str(error).splitlines()[0]})")
        except Exception as error:  # one broken part must not cost the recording of the others
            traceback.print_exc(file=sys.stdout)
            self.failures.append(f"{title}: {type(error).__name__}: {error}")
        self.release()

    def release(self) -> None:
        """Give back memory that nothing holds any more, so that it counts as free."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def curve(
        self, id: str, title: str, steps: dict, bytes_of: Callable[[int], int], x="context", unit="tokens", **conditions
    ):
        """Time `steps` {x: step} in turns, record and print them; returns {x: Timing}."""
        floors = {key: bytes_of(key) / self.read_bytes_per_second for key in steps} if self.on_gpu else None
        timings = self.clock.sweep(
            steps, self.plan.seconds_per_point * len(steps), self.plan.samples, progress=False, floors=floors
        )
        points = [recordings.point(key, timed, bytes_of(key)) for key, timed in timings.items()]
        known = {one.id: one for one in self.recording.series}
        if id in known:  # a curve whose points could not be on the device together
            known[id].points.extend(points)
        else:
            self.recording.series.append(recordings.series(id, title, points, x, unit, **conditions))
        print(title)
        for key, timed in timings.items():
            rate = bytes_of(key) / timed.median
            median, spread = timing.pretty_seconds(timed.median), timing.pretty_seconds(timed.spread)
            print(
                f"  {key:>9,} {unit:<10} {median:>10} ± {spread:<9}"
                f" {rate / 1e9:8,.1f} GB/s  {rate / self.copy_bytes_per_second:5.0%} of a copy"
            )
            if self.on_gpu and timed.verdict != "ok":
                self.note(f"{title}, {key} {unit}: {timed.verdict}")
        return timings

    def compare(self, name: str, error: float, tolerance: float) -> None:
        """Record a comparison with float64 and complain if it is off."""
        good = error <= tolerance
        print(f"  {'ok ' if good else 'OFF'} {name:<58} {error:9.2e}  (at most {tolerance:.0e})")
        self.recording.checks.append(recordings.Comparison(name, min(error, 1e30), tolerance))
        if not good:
            self.failures.append(f"{name}: error {error:.2e} is above {tolerance:.0e}")

    def steps(self, run: Callable, prepare: dict[int, Callable]) -> dict[int, Callable]:
        """Steps for the clock: what `prepare` has under a key, then `run`, captured once where there is a GPU."""
        graph = graphs.Graph(run) if self.on_gpu else run

        def step(before):
            return graphs.Prepared(before, graph) if self.on_gpu else lambda: (before(), graph())

        return {key: step(before) for key, before in prepare.items()}

    def _copy_rate(self) -> float:
        source = torch.ones(self.plan.copy_bytes // 4, dtype=torch.float32, device=self.device)
        target = torch.empty_like(source)
        timed = self.clock.measure(lambda: target.copy_(source), 0.5, progress=False)
        return 2 * source.nbytes / timed.median

    def note(self, text: str) -> None:
        print(f"note: {text}")
        self.recording.notes.append(text)


def against_float64(check: Check) -> None:
    """Every layout in every dtype, and whether the machine may use fp8 at all."""
    fp8 = not check.on_gpu or kernels.reads_fp8(check.device)
    for dtype in check.plan.dtypes:
        for name, make in attention_cases.cases(dtype, check.device, fp8).items():
            if check.plan.cases is None or name in check.plan.cases:
                case = make()
                check.compare(f"{name}, {str(dtype).removeprefix('torch.')}", case.error(), case.tolerance)


def decode(check: Check, model: Geometry) -> None:
    """Whole decode steps: against context at batch 1, and against batch."""
    plan = check.plan
    decoder = make_decoder(check, model)
    contexts = [context for context in plan.contexts if fits(check, model, context, 1)]
    decode_curve(
        check, decoder, model, 1, {context: context for context in contexts}, "decode-batch-1", "context", "tokens"
    )
    for batch in plan.batches:
        check.release()
        if fits(check, model, plan.batch_context, batch):
            points = {batch: plan.batch_context}
            decode_curve(check, decoder, model, batch, points, "decode-against-batch", "batch", "sequences")


def make_decoder(check: Check, model: Geometry) -> Decoder:
    return Decoder(model, check.plan.dtype, check.device, check.backend)


def decode_curve(check, decoder, model, batch, points: dict[int, int], id: str, x: str, unit: str) -> dict:
    """Decode steps at `points` {x: context}, over one cache."""
    capacity = round_up(max(points.values()) + 1)
    cache = StaticCache(model, capacity, batch, check.plan.dtype, check.device, check.backend)
    cache.kernels = cuda
    cache.keys.normal_()
    cache.values.normal_()
    if check.on_gpu:
        graph = graphs.DecodeGraph(decoder, cache)
        steps = {key: graph.at(context) for key, context in points.items()}
    else:
        tokens = torch.zeros(batch, dtype=torch.long)
        rewinds = {key: functools.partial(cache.rewind, context) for key, context in points.items()}
        steps = check.steps(lambda: decoder.decode(tokens, cache), rewinds)

    def streamed(key):
        return decoder.weight_bytes + cache.step_bytes(points[key] + 1)

    fixed = {"batch": batch} if x == "context" else {"context": check.plan.batch_context}
    title = f"decode, {model.name}, {name_of(check.plan.dtype)}, {next(iter(fixed))} {next(iter(fixed.values())):,}"
    return check.curve(
        id, title, steps, streamed, x, unit, model=model.name, dtype=name_of(check.plan.dtype), cache="full",
        weights="synthetic", **fixed,
    )  # fmt: skip


def fits(check: Check, model: Geometry, context: int, batch: int, dtype: torch.dtype | None = None) -> bool:
    """Whether the cache has room beside what is on the device; if not, says so."""
    needed = counts.kv_bytes(model, context + 1, batch, dtype or check.plan.dtype)
    free = devices.free_bytes(check.device)
    if free is None or needed <= sizing.usable_bytes(free):
        return True
    check.note(f"{model.name}: no room for {context:,} tokens at batch {batch}")
    return False


def precisions(check: Check, model: Geometry) -> None:
    """Whole decode steps over the quantised caches of the course, as unit 06 times them."""
    decoder = make_decoder(check, model)
    kinds = {"int8": Int8Cache, "int4": functools.partial(Int4TokenCache, group=model.head_dim // 2), "fp8": Fp8Cache}
    for batch in check.plan.step_batches:
        for name, kind in kinds.items():
            check.release()
            id = f"decode-{name}" if batch == 1 else f"decode-{name}-batch-{batch}"
            step_curve(check, decoder, model, id, name, kind, {}, batch)


def units(check: Check) -> None:
    """Whole decode steps as units 02 to 09 time them: float32, over their caches, alone and side by side; and whether
    the kernels that a step consists of give plain torch's logits."""
    plan, model = check.plan, check.plan.unit
    backend = None if check.on_gpu else "cuda"
    decoder, plain = (Decoder(model, torch.float32, check.device, name) for name in (backend, "reference"))
    kinds = {"float32": FullCache, "int8": Int8Cache, "int4": functools.partial(Int4TokenCache, group=model.head_dim)}
    for name, kind in kinds.items():
        tokens, logits = torch.tensor([[1, 2], [3, 4]], device=check.device), []
        for one, its in ((decoder, backend), (plain, "reference")):
            cache = kind(model, 64, 2, device=check.device, backend=its)
            cache.fill(40)
            logits.append(torch.cat([one.decode(tokens[0], cache), one.decode(tokens, cache)[:, 1]]).double())
        error = (logits[0] - logits[1]).abs().max() / logits[1].abs().max()
        check.compare(f"two steps of {model.name}, {name} cache, against plain torch", error.item(), 2e-2)
    del plain, cache
    for batch in plan.step_batches:
        for name, kind in kinds.items():
            check.release()
            id = f"unit-{name}-batch-{batch}"
            step_curve(check, decoder, model, id, name, kind, {}, batch, torch.float32, plan.unit_contexts)


def layouts(check: Check, model: Geometry) -> None:
    """Whole decode steps of the same model with other heads, as unit 03 times them."""
    rank, rope = check.plan.latents[0][2:]
    mla = geometry.MLA(rank, rope, qk_nope_head_dim=model.head_dim, v_head_dim=model.head_dim)
    half = functools.partial(FullCache, dtype=check.plan.dtype)
    for name, kind, changes in (
        ("MHA", half, {"kv_heads": model.q_heads}),
        ("MQA", half, {"kv_heads": 1}),
        (
            "MLA",
            functools.partial(LatentCache, dtype=check.plan.dtype),
            {"mla": mla, "kv_heads": model.q_heads, "head_dim": model.head_dim + rope},
        ),
    ):
        check.release()
        variant = model.replace(name=f"{model.name} with {name}", **changes)
        decoder = make_decoder(check, variant)
        step_curve(check, decoder, variant, f"decode-{name.lower()}", name_of(check.plan.dtype), kind, {"layout": name})
        del decoder


def step_curve(
    check: Check, decoder: Decoder, model: Geometry, id: str, precision: str, kind, conditions, batch: int = 1,
    dtype: torch.dtype | None = None, contexts: Sequence[int] = (),
) -> None:  # fmt: skip
    """Decode steps over a cache of `kind`, one captured at each context; `dtype` of the decoder, the plan's if None."""
    plan, dtype = check.plan, dtype or check.plan.dtype
    contexts = contexts or [context for context in plan.contexts if context <= 4 * plan.batch_context]
    contexts = [context for context in contexts if fits(check, model, context, batch, dtype)]
    if not contexts:
        return
    cache = kind(model, round_up(max(contexts) + 1), batch, device=check.device, backend=check.backend)
    if not getattr(cache, "fused", True):
        check.note(f"{id}: left out, this device has no kernel that reads {precision}")
        return
    cache.kernels = cuda
    point = sweeps.DecodeStep(decoder, cache)
    steps = {context: point.at(context) for context in contexts}
    check.curve(
        id, f"decode, {model.name}, {precision} cache, batch {batch}", steps, point.bytes_at, model=model.name,
        dtype=name_of(dtype), cache=precision, batch=batch, weights="synthetic", **conditions,
    )  # fmt: skip


def prefill(check: Check, model: Geometry) -> None:
    """Prompts of several lengths: time to first token without queueing."""
    plan, decoder = check.plan, make_decoder(check, model)
    cache = FullCache(model, max(plan.prompts), 1, plan.dtype, check.device, check.backend)
    steps = {}
    for length in plan.prompts:
        prompt = torch.randint(0, model.vocab, (1, length), device=check.device)

        def step(prompt=prompt):
            cache.rewind(0)
            return decoder.prefill(prompt, cache)

        steps[length] = step
    timings = check.curve(
        "prefill", f"prefill, {model.name}, {name_of(plan.dtype)}", steps, lambda length: decoder.weight_bytes,
        "prompt", "tokens", model=model.name, dtype=name_of(plan.dtype), batch=1, weights="synthetic",
    )  # fmt: skip
    for length, timed in timings.items():
        rate = counts.prefill_flops(model, length) / timed.median
        print(f"  {length:>9,} tokens     {length / timed.median:12,.0f} tokens/s  {rate / 1e12:8.1f} TFLOP/s")


def attention(check: Check, model: Geometry) -> None:
    """Attention of all layers alone: every precision, batch 1 against context."""
    fp8 = not check.on_gpu or kernels.reads_fp8(check.device)
    for precision in ("full", "fp8", "int8", "int4") if fp8 else ("full", "int8", "int4"):
        make = functools.partial(gpu_caches.layer, precision, 1, model.kv_heads)
        attention_curve(check, f"attention-{precision}", precision, model, model.q_heads, make, model.head_dim)
        check.section(
            f"attention at batch {check.plan.batches[-1]}, {precision}", lambda p=precision: batched(check, model, p)
        )


def batched(check: Check, model: Geometry, precision: str) -> None:
    batch, context = check.plan.batches[-1], check.plan.batch_context
    if fits(check, model, context, batch):
        make = functools.partial(gpu_caches.layer, precision, batch, model.kv_heads)
        attention_curve(
            check, f"attention-{precision}-batch-{batch}", precision, model, model.q_heads, make, model.head_dim,
            (context,), batch,
        )  # fmt: skip


def heads(check: Check, model: Geometry) -> None:
    """The same query heads over 1 KV head, over as many as there are query heads, and over latents."""
    contexts = tuple(context for context in check.plan.contexts if context <= 4 * check.plan.batch_context)
    for name, kv_heads in (("mha", model.q_heads), ("mqa", 1)):
        make = functools.partial(gpu_caches.layer, "full", 1, kv_heads)
        attention_curve(check, f"attention-{name}", name.upper(), model, model.q_heads, make, model.head_dim, contexts)
    for name, q_heads, rank, rope in check.plan.latents:

        def make(capacity, head_dim, dtype, device, rank=rank, rope=rope):
            return gpu_caches.latent(1, capacity, rank, rope, head_dim**-0.5, dtype, device)

        id = f"attention-mla-{q_heads}-heads"
        attention_curve(check, id, f"MLA as in {name}", model, q_heads, make, rank + rope, contexts)


def attention_curve(check, id, name, model, q_heads, make, head_dim, contexts=None, batch=1) -> None:
    """`model.layers` layers of what `make(capacity, head_dim, dtype, device)` returns, as one step.

    All layers, because one layer's cache may fit the processor's, and then the memory is not what is measured.
    """
    plan = check.plan
    contexts = contexts or plan.contexts
    layers = [make(round_up(max(contexts)), head_dim, plan.dtype, check.device) for _ in range(model.layers)]
    q = torch.randn(batch, q_heads, head_dim, dtype=plan.dtype, device=check.device)
    checked = min(max(contexts), plan.batch_context)
    lengths = torch.full((batch,), checked, dtype=torch.int32, device=check.device)
    if batch == 1:
        k, v = layers[0].dense()
        scale = head_dim**-0.5
        expected, _ = attention_cases.attention(q, k, v, lengths.tolist(), scale)
        error = (layers[0].attend(q, lengths).double().cpu() - expected).abs().max() / expected.abs().max()
        check.compare(f"{name}, {checked:,} tokens, {q_heads} query heads", error.item(), 2e-2)
        del k, v

    prepare = {context: functools.partial(lengths.fill_, context) for context in contexts}
    steps = check.steps(lambda: [layer.attend(q, lengths) for layer in layers], prepare)
    token_bytes = layers[0].bytes_per_token * model.layers
    shape = f"{q_heads} query heads, batch {batch}"
    check.curve(
        id, f"attention alone, {model.layers} layers, {name}, {shape}", steps, lambda context: context * token_bytes,
        model=model.name, q_heads=q_heads, batch=batch, layers=model.layers,
    )  # fmt: skip


def shared_prefix(check: Check, model: Geometry) -> None:
    """The same attention with the prefix stored and read once, and with a copy for each sequence."""
    plan = check.plan
    batch = min(8, plan.batches[-1])
    total = plan.prefix + plan.own
    make = functools.partial(torch.randn, dtype=plan.dtype, device=check.device)
    q = make(batch, model.q_heads, model.head_dim)
    layers = range(model.layers)
    shape = (model.kv_heads, round_up(total), model.head_dim)
    whole = [(make(batch, *shape), make(batch, *shape)) for _ in layers]
    prefix = [(k[:1, :, : plan.prefix].contiguous(), v[:1, :, : plan.prefix].contiguous()) for k, v in whole]
    own = [tuple(x[:, :, plan.prefix : plan.prefix + round_up(plan.own)].contiguous() for x in pair) for pair in whole]
    total_length, own_length = (
        torch.full((batch,), n, dtype=torch.int32, device=check.device) for n in (total, plan.own)
    )
    for (k, v), (prefix_k, prefix_v) in zip(whole, prefix, strict=True):
        k[:, :, : plan.prefix] = prefix_k
        v[:, :, : plan.prefix] = prefix_v
    shared_length = torch.full((1,), plan.prefix, dtype=torch.int32, device=check.device)

    def plain():
        return [cuda.decode_attention(q, k, v, total_length) for k, v in whole]

    def cascade():
        return [
            cuda.cascade_attention(q, *shared, shared_length, *mine, own_length)
            for shared, mine in zip(prefix, own, strict=True)
        ]

    error = (plain()[0].double() - cascade()[0].double()).abs().max() / plain()[0].double().abs().max()
    check.compare("shared prefix read once, against a copy for each", error.item(), 2e-2)
    token_bytes = model.layers * 2 * model.kv_heads * model.head_dim * plan.dtype.itemsize
    for id, run, tokens in (
        ("prefix-copied", plain, batch * total),
        ("prefix-shared", cascade, plan.prefix + batch * plan.own),
    ):
        steps = check.steps(run, {batch: lambda: None})
        check.curve(
            id, f"attention alone, {model.layers} layers, {id.replace('-', ' ')}: {plan.prefix:,} + {plan.own} tokens",
            steps, lambda _, tokens=tokens: tokens * token_bytes, "batch", "sequences", model=model.name, batch=batch,
        )  # fmt: skip


def large_model(check: Check) -> None:
    """A model too large for the device, from a slice of its layers."""
    plan = check.plan
    free = devices.free_bytes(check.device)
    cut = sizing.slice_of(plan.sliced, free, plan.batch_context, dtype=plan.dtype)
    print(cut)
    medians = []
    for part in (cut.half, cut.part):
        decoder = make_decoder(check, part)
        id = f"decode-{recordings.slug(part.name)}"
        context = plan.batch_context
        timed = decode_curve(check, decoder, part, 1, {context: context}, id, "context", "tokens")[context]
        medians.append(timed.median)
        del decoder
        check.release()
    whole = cut.whole_seconds(part_seconds=medians[1], half_seconds=medians[0])
    check.note(f"{cut.whole.name} at {plan.batch_context:,} tokens, scaled from a slice: {whole * 1e3:.2f} ms. {cut}")


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def largest_model(check: Check) -> Geometry:
    """The largest of the plan's models that fits, with `batch_context` tokens, by its size and then in fact."""
    plan, free = check.plan, devices.free_bytes(check.device)
    models = plan.models if free is None else sizing.fitting(plan.models, free, plan.batch_context, dtype=plan.dtype)

    def built(model):
        make_decoder(check, model)
        return model

    return sizing.first_that_fits(models, built)


def run(plan: Plan, device: torch.device) -> Check:
    """All sections; the recording is in the returned object even when some failed."""
    check = Check(plan, device)
    check.section("kernels against float64", lambda: against_float64(check))
    model = largest_model(check)
    print(f"\nThe largest model that fits: {model.name}")
    check.section("decode", lambda: decode(check, model))
    check.section("prefill", lambda: prefill(check, model))
    check.section("attention in every precision", lambda: attention(check, model))
    check.section("attention with other heads", lambda: heads(check, model))
    check.section("a shared prefix", lambda: shared_prefix(check, model))
    check.section("whole steps in every precision", lambda: precisions(check, model))
    check.section("whole steps as the units run them", lambda: units(check))
    check.section("whole steps with other heads", lambda: layouts(check, model))
    if plan.sliced:
        check.section(f"a slice of {plan.sliced.name}", lambda: large_model(check))
    return check


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--toy", action="store_true", help="no GPU: Triton's interpreter, toy sizes; times mean nothing"
    )
    parser.add_argument("--out", default="build/recordings", help="folder to write the recording to")
    options = parser.parse_args(arguments)
    if options.toy:
        check = run(TOY, torch.device("cpu"))
        check.recording.notes.append("a rehearsal in Triton's interpreter: its times mean nothing")
    elif torch.cuda.is_available():
        check = run(plan_for(torch.device("cuda")), torch.device("cuda"))
    else:
        print("There is no CUDA device here. `python -m tools.gpu_check --toy` rehearses the check without one.")
        return 2
    print(f"\nWritten to {recordings.save(check.recording, options.out)}")
    print(f"{(time.perf_counter() - check.started) / 60:.1f} minutes, {len(check.recording.checks)} comparisons")
    for failure in check.failures:
        print(f"FAILED {failure}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
