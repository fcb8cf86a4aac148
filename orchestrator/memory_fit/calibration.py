"""The measured constants of `calibration.toml`, read once, typed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib import resources

from orchestrator.memory_fit.sizes import GIB, MIB

_UNITS = {"MiB": MIB, "GiB": GIB, "number": 1}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value: the range it was seen in, and what to expect. Bytes, or a plain number."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> Estimate:
        """In proportion."""
        return Estimate(self.low * factor, self.mid * factor, self.high * factor)

    def plus(self, *others: Estimate | float) -> Estimate:
        """The sum; a number has no range."""
        low, mid, high = self.low, self.mid, self.high
        for other in others:
            if isinstance(other, Estimate):
                low, mid, high = low + other.low, mid + other.mid, high + other.high
            else:
                low, mid, high = low + other, mid + other, high + other
        return Estimate(low, mid, high)


NONE = Estimate(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every constant; the file says where each comes from."""

    llama_context_cpu: Estimate
    llama_context_cuda: Estimate
    llama_growth_cuda: Estimate
    llama_context_vulkan: Estimate
    llama_growth_vulkan: Estimate
    llama_context_rocm: Estimate
    llama_unified: Estimate
    llama_compute_base: Estimate
    llama_compute_token: Estimate
    llama_mask_bytes: Estimate
    llama_mtp_token: Estimate
    ik_mla_bytes: Estimate
    vllm_context: Estimate
    vllm_unified: Estimate
    vllm_activation_tokens: Estimate
    vllm_activation_hybrid: Estimate
    vllm_logit_bytes: Estimate
    vllm_sampler_bytes: Estimate
    vllm_sort_bytes: Estimate
    vllm_graphs: Estimate
    vllm_graphs_token: Estimate
    vllm_graphs_most: Estimate
    vllm_vision: Estimate
    vllm_beyond: Estimate
    sglang_context: Estimate


def read(text: str) -> Calibration:
    """The constants of a file's text. Raises ValueError for a missing or unknown table, a range that is out of
    order, and a constant without a source."""
    tables = tomllib.loads(text)
    wanted = {field.name for field in fields(Calibration)}
    if wanted != set(tables):
        raise ValueError(f"calibration.toml: {', '.join(sorted(wanted ^ set(tables)))} is missing or unknown")
    found = {}
    for name, table in tables.items():
        unit = _UNITS[table["unit"]]
        estimate = Estimate(*(table[key] * unit for key in ("low", "mid", "high")))
        if not 0 <= estimate.low <= estimate.mid <= estimate.high:
            raise ValueError(f"calibration.toml: {name} is not low <= mid <= high")
        if not table["source"] or table["rows"] < 0:
            raise ValueError(f"calibration.toml: {name} says no source")
        found[name] = estimate
    return Calibration(**found)


CALIBRATION = read(resources.files(__package__).joinpath("calibration.toml").read_text("utf-8"))
