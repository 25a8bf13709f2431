"""What if: a decode step of any model on any device, by bytes. A plain function, and sliders over it."""

import os
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from helpers import data, drawings
from helpers.models import geometry, hf_config
from helpers.models.geometry import Geometry
from helpers.serving.incident import Model


@dataclass(frozen=True)
class Step:
    """Bytes of one decode step, and what follows.

    held_bytes counts what has to be in memory: all experts, the input embedding, and every cache.
    """

    weight_bytes: float
    kv_bytes: float
    held_bytes: float
    memory_bytes: float
    bytes_per_second: float

    @property
    def tpot_seconds(self) -> float:
        """Time per output token if a step does nothing but read, at the data sheet's bandwidth: a floor."""
        return (self.weight_bytes + self.kv_bytes) / self.bytes_per_second

    @property
    def fits(self) -> bool:
        """Whether what the GPUs hold has room in their memory."""
        return self.held_bytes <= self.memory_bytes

    def __str__(self) -> str:
        room = "fits" if self.fits else "does NOT fit"
        return (
            f"weights {self.weight_bytes / 1e9:,.1f} GB + cache {self.kv_bytes / 1e9:,.1f} GB a step: "
            f"{self.tpot_seconds * 1e3:,.1f} ms at least. {self.held_bytes / 1e9:,.0f} of "
            f"{self.memory_bytes / 1e9:,.0f} GB: {room}."
        )


def step(
    model: str | Geometry = "Llama-3.1-70B",
    device: str = "H100 SXM",
    gpus: int = 8,
    batch: int = 31,
    context: int = 30_000,
    weights: str = "bf16",
    cache: str = "bf16",
    window: int | None = None,
    kv_heads: int | None = None,
) -> Step:
    """The bytes of one decode step.

    Args:
        model: a name of the catalogue, the path of a config.json, or a Geometry.
        device: an id of helpers/data/devices.json whose memory and bandwidth are known.
        weights, cache: formats, as `helpers.serving.incident.bytes_per_number` names them.
        window: tokens that every layer keeps; None leaves the model's own windows.
        kv_heads: KV heads in place of the model's; not for MLA.

    Raises:
        ValueError, LookupError: something that does not exist, or that this model cannot be.
    """
    if isinstance(model, str):
        shape = hf_config.read(model) if Path(model).exists() else geometry.get(model)
    else:
        shape = model
    if kv_heads is not None:
        if shape.mla:
            raise ValueError(f"{shape.name} keeps one latent a token, no KV heads: leave kv_heads out")
        shape = shape.replace(kv_heads=kv_heads)
    if window is not None:
        shape = shape.replace(sliding_window=window, sliding_layers=shape.layers)
    sheet = data.device(device)
    if sheet["capacity_GB"] is None:
        raise ValueError(f"the memory of {device} is not in the course's tables; choose another device")
    stored = Model(shape, weights, cache)
    kv = batch * stored.kv_bytes(context)
    return Step(
        weight_bytes=stored.weight_bytes(batch),
        kv_bytes=kv,
        held_bytes=stored.held_bytes + kv,
        memory_bytes=gpus * sheet["capacity_GB"] * 1e9,
        bytes_per_second=gpus * sheet["bandwidth_GBps"] * 1e9,
    )


def draw(found: Step) -> Axes:
    """The bar of a step's bytes, weights and cache, with TPOT and what does not fit in its title."""
    return drawings.step_bytes(
        {"a step": {"weights": found.weight_bytes, "cache": found.kv_bytes}},
        title=f"TPOT {found.tpot_seconds * 1e3:,.1f} ms at least; {found.held_bytes / 1e9:,.0f} of "
        f"{found.memory_bytes / 1e9:,.0f} GB" + ("" if found.fits else ": DOES NOT FIT"),
    )


def explore() -> None:
    """Sliders over `step`, where there is somebody to move them; elsewhere the picture of the incident."""
    if "COURSE_UNATTENDED" in os.environ:  # `make course`: a widget waited for its client for ever, once
        draw(step())
        return
    import ipywidgets  # here, because everything else runs without it

    devices = [row["id"] for row in data.load("devices") if row["capacity_GB"]]
    formats = ["bf16", "fp8", "q8_0", "q4_0", "mxfp4"]
    options = {"continuous_update": False}
    powers = ipywidgets.SelectionSlider

    def show(**chosen) -> None:
        kv_heads, window = chosen.pop("kv_heads"), chosen.pop("window")
        try:
            found = step(**chosen, kv_heads=kv_heads or None, window=window or None)
        except (ValueError, LookupError) as error:
            print(error)
            return
        draw(found)

    ipywidgets.interact(
        show,
        model=ipywidgets.Dropdown(options=sorted(geometry.catalogue()), value="Llama-3.1-70B"),
        device=ipywidgets.Dropdown(options=devices, value="H100 SXM"),
        gpus=powers(options=[1, 2, 4, 8, 16], value=8, **options),
        batch=ipywidgets.IntSlider(31, 1, 256, **options),
        context=powers(options=[(f"{2**n},000", 2**n * 1000) for n in range(8)], value=32_000, **options),
        weights=ipywidgets.Dropdown(options=formats),
        cache=ipywidgets.Dropdown(options=formats),
        # All of them pairs: among single values a pair would be a value itself.
        window=ipywidgets.Dropdown(options=[("the model's", 0), *[(f"{2**n:,}", 2**n) for n in range(9, 15)]]),
        kv_heads=ipywidgets.Dropdown(options=[("the model's", 0), *[(str(2**n), 2**n) for n in range(7)]]),
    )
