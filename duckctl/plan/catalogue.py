"""Hardware and model shapes from YAML: package data, and the user's file on top of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from duckctl.errors import UsageError
from duckctl.yaml_source import NOT_PLAIN

FORMAT_BITS = {"fp9": 9.0, "fp8": 8.0, "fp7": 7.0, "q6": 6.5, "q4": 4.5}
"""Bits of a weight on a duck, small scales of the block formats included."""
LOSSLESS_FORMATS = ("fp9", "fp8")
FILE_BYTES_MAX = 1 << 20
HARDWARE_GROUPS = ("ducks", "gpus", "links")
FIGURE_MIN, FIGURE_MAX = 1e-6, 1e15  # of a figure that the model divides by; of every figure
MAY_BE_ZERO = frozenset(
    {
        *("idle_w", "load_w", "price", "acceptance", "dense_layers", "mtp_layers"),
        *("shared_intermediate", "dense_intermediate", "index_bytes_per_token_layer"),
    }
)
HIGHEST = {"acceptance": 1, "layers": 10_000, "experts": 100_000}  # where it is not FIGURE_MAX


class CatalogueError(UsageError):
    """A name that is not in the catalogue, or a file of figures that cannot be used."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint or "the files are described in docs/reference/plan.md")


@dataclass(frozen=True)
class DuckType:
    """One kind of small box. Bandwidth is the data sheet's; what is reached of it is in Profile."""

    name: str
    title: str
    cores: int
    all_core_ghz: float
    flops_per_cycle_core: float
    params_per_cycle: Mapping[str, tuple[float, float]]  # by format: one token, two tokens
    memory_gib: float
    memory_gb_s: float
    nic_mbps: float
    idle_w: float
    load_w: float
    price: float | None = None

    def compute_params_per_s(self, weight_format: str, tokens: int) -> float:
        """Weights per second of all cores when memory is no limit."""
        rates = self.params_per_cycle[weight_format]
        return self.cores * self.all_core_ghz * 1e9 * rates[0 if tokens == 1 else 1]

    @property
    def flops_per_s(self) -> float:
        return self.cores * self.all_core_ghz * 1e9 * self.flops_per_cycle_core


@dataclass(frozen=True)
class GpuType:
    """One kind of GPU; tflops are dense, 16-bit input, FP32 sums."""

    name: str
    title: str
    memory_gib: float
    memory_gb_s: float
    tflops: float
    load_w: float
    price: float | None = None


@dataclass(frozen=True)
class Link:
    """An Ethernet speed."""

    name: str
    mbps: float


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides its speed; names as in config.json where they exist there."""

    name: str
    title: str
    layers: int
    dense_layers: int
    mtp_layers: int
    hidden: int
    experts: int
    top_k: int
    moe_intermediate: int
    shared_intermediate: int
    dense_intermediate: int
    vocabulary: int
    attention_params: int
    gpu_bytes_per_param: int
    kv_bytes_per_token_layer: int
    index_bytes_per_token_layer: int
    kv_read_tokens_max: int | None
    context: int
    acceptance: float

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts that every token passes, without MTP."""
        return self.layers - self.dense_layers


@dataclass(frozen=True)
class Catalogue:
    """Everything that can be named on the command line."""

    ducks: Mapping[str, DuckType]
    gpus: Mapping[str, GpuType]
    links: Mapping[str, Link]
    models: Mapping[str, ModelShape]

    def duck(self, name: str) -> DuckType:
        return _named(self.ducks, name, "duck")

    def gpu(self, name: str) -> GpuType:
        return _named(self.gpus, name, "GPU")

    def link(self, name: str) -> Link:
        return _named(self.links, name, "link speed")

    def model(self, name: str) -> ModelShape:
        return _named(self.models, name, "model")


Entry = TypeVar("Entry", DuckType, GpuType, Link, ModelShape)


def _named(entries: Mapping[str, Entry], name: str, kind: str) -> Entry:
    if name.lower() in entries:
        return entries[name.lower()]
    nearest = difflib.get_close_matches(name.lower(), list(entries), n=1, cutoff=0.4)
    suggestion = f" Did you mean '{nearest[0]}'?" if nearest else ""
    raise CatalogueError(
        f"there is no {kind} '{name}' in the catalogue.{suggestion}",
        f"known: {', '.join(entries)}; others can be described in a file: --hardware FILE",
    )


def load_catalogue(user_file: Path | None = None) -> Catalogue:
    """The shipped catalogue; entries of ``user_file`` replace and extend it."""
    shipped = {**_package_data("hardware.yaml"), **_package_data("models.yaml")}
    if user_file is not None:
        for group, entries in _read_user_file(user_file).items():
            shipped[group] = {**shipped[group], **entries}
        origin = str(user_file)
    else:
        origin = "the shipped catalogue"
    return Catalogue(
        ducks=_entries(DuckType, shipped["ducks"], f"{origin}: ducks"),
        gpus=_entries(GpuType, shipped["gpus"], f"{origin}: gpus"),
        links=_entries(Link, shipped["links"], f"{origin}: links"),
        models=_entries(ModelShape, shipped["models"], f"{origin}: models"),
    )


def package_text(name: str) -> str:
    """A data file of this package."""
    return (resources.files("duckctl.plan") / "data" / name).read_text(encoding="utf-8")


def _package_data(name: str) -> dict[str, Any]:
    import yaml

    document: dict[str, Any] = yaml.safe_load(package_text(name))
    return document


def _read_user_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise CatalogueError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogueError(f"can't read {path}: {error.strerror}") from None
    except RecursionError:
        raise CatalogueError(f"{path} is nested too deeply") from None
    except (yaml.YAMLError, *NOT_PLAIN) as error:
        raise CatalogueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    groups = (*HARDWARE_GROUPS, "models")
    if not isinstance(document, dict):
        raise CatalogueError(f"{path} must be a mapping with {', '.join(groups)}")
    for group, entries in document.items():
        if group not in groups:
            raise CatalogueError(f"{path}: unknown group '{group}'", f"known: {', '.join(groups)}")
        if not isinstance(entries, dict):
            raise CatalogueError(f"{path}: '{group}' must be a mapping of names to entries")
    return document


def _entries(kind: type[Entry], raw: Mapping[Any, Any], where: str) -> dict[str, Entry]:
    for name in raw:
        if not isinstance(name, str):
            raise CatalogueError(
                f"{where}: the name {_short(name)} is no text", f"quote it: '{_short(name)}'"
            )
    return {name.lower(): _entry(kind, name, values, where) for name, values in raw.items()}


def _entry(kind: type[Entry], name: str, values: object, where: str) -> Entry:
    place = f"{where}: '{name}'"
    if not isinstance(values, dict):
        raise CatalogueError(f"{place} must be a mapping")
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind)}
    unknown = [key for key in values if key not in known or key == "name"]
    if unknown:
        raise CatalogueError(f"{place} has the unknown key '{unknown[0]}'", _keys(known))
    needed = [key for key, field in known.items() if field.default is MISSING and key != "name"]
    missing = [key for key in needed if key not in values]
    if missing:
        raise CatalogueError(f"{place} lacks '{missing[0]}'", _keys(known))
    checked = {key: _value(value, known[key], place) for key, value in values.items()}
    entry = kind(name=name.lower(), **checked)
    if isinstance(entry, ModelShape):
        _check_shape(entry, place)
    return entry


def _check_shape(model: ModelShape, place: str) -> None:
    """Figures that are good by themselves and cannot go together."""
    if model.top_k > model.experts:
        raise CatalogueError(f"{place}: 'top_k' is {model.top_k}, of {model.experts} experts")
    if model.dense_layers >= model.layers:
        raise CatalogueError(
            f"{place}: 'dense_layers' is {model.dense_layers}, of {model.layers} layers: "
            "none has experts"
        )


def _keys(known: Iterable[str]) -> str:
    return "keys of an entry: " + ", ".join(key for key in known if key != "name")


def _value(value: Any, field: Field[Any], place: str) -> Any:
    """A value of a field's type; numbers are in the range in which the model can use them."""
    kind = str(field.type)
    where = f"{place}: '{field.name}'"
    if value is None and "None" in kind:
        return None
    if kind == "str":
        return str(value)
    if kind.startswith("Mapping"):
        return _rates(value, where)
    low = 0.0 if field.name in MAY_BE_ZERO else FIGURE_MIN
    return check_figure(
        value, where, low, HIGHEST.get(field.name, FIGURE_MAX), whole=kind.startswith("int")
    )


def check_figure(
    value: Any,
    where: str,
    low: float = FIGURE_MIN,
    high: float = FIGURE_MAX,
    *,
    whole: bool = False,
) -> float:
    """The number itself when it can be used. Raises CatalogueError."""
    if whole and low > 0:
        low = 1
    # Neither NaN nor infinity is in a range, and whole numbers of any length can be compared.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        limit = "above 0" if low else "that is not negative"
        raise CatalogueError(
            f"{where} is {_short(value)}, expected a number {limit} and at most {high:g}"
        )
    if whole and value != int(value):
        raise CatalogueError(f"{where} is {value!r}, expected a whole number")
    return int(value) if whole else value


def _short(value: Any) -> str:
    """A value for a message. Aliases of YAML and hexadecimal numbers can be endless."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    if isinstance(value, int) and abs(value) > 10**20:
        return "a huge number"
    return repr(value[:60] if isinstance(value, str) else value)


def _rates(value: Any, where: str) -> dict[str, tuple[float, float]]:
    if not isinstance(value, dict) or set(value) != set(FORMAT_BITS):
        raise CatalogueError(f"{where} must have exactly the formats {', '.join(FORMAT_BITS)}")
    rates = {}
    for name, pair in value.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise CatalogueError(f"{where}: each format needs two numbers above 0")
        one, two = (check_figure(n, f"{where}: '{name}'") for n in pair)
        rates[name] = (float(one), float(two))
    return rates
