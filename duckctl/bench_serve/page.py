"""index.html of an archive: one page, no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0}
td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}
pre{background:#f6f6f4;padding:.8em;white-space:pre-wrap;max-height:20em;overflow:auto}
img{max-width:100%} h2{margin-top:2em} small{color:#666}
@media (prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#242424}
td,th{border-color:#444}img{background:#fff}}
"""
METRICS = (
    ("ttft_ms", "TTFT", "ms"),
    ("prefill_tokens_per_s", "prefill", "tok/s"),
    ("tpot_ms", "TPOT", "ms"),
    ("decode_tokens_per_s", "decode", "tok/s"),
)
STAGES = (
    ("host_ms", "host"),
    ("wire_and_wait_ms", "wire and waiting"),
    ("kernel_ms", "duck kernel"),
)


def index_page(run: Mapping[str, Any], texts: Mapping[str, tuple[str, str]], plots: bool) -> str:
    """The page. ``texts`` has prompt and output of each case."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>bench serve {escape(run['started'])}</title><style>{STYLE}</style>",
        f"<h1>bench serve: {escape(run['model'])}</h1>",
        _facts(run),
        "<h2>All cases</h2>",
        _overview(run["cases"]),
        "<p><small>Median of the repeats, ± half of (largest − smallest). TTFT: request sent to "
        "first token. Prefill: prompt tokens / TTFT. TPOT: (last − first token) / (tokens − 1), "
        "engine's clock.</small></p>",
    ]
    for case in run["cases"]:
        parts.append(_case(case, *texts[case["name"]], plots))
    return "\n".join(parts) + "\n"


def _facts(run: Mapping[str, Any]) -> str:
    ducks = run["server"].get("ducks") or []
    facts = {
        "started": run["started"],
        "server": f"{run['url']}, {len(ducks)} ducks",
        "versions": ", ".join(f"{name} {value}" for name, value in run["versions"].items()),
        "repeats": f"{run['repeats']} measured after {run['warm_up']} warm-up",
        "note": run["note"],
    }
    rows = [f"<tr><td>{k}<td style='text-align:left'>{escape(str(v))}" for k, v in facts.items()]
    return f"<table>{''.join(row for row in rows)}</table>"


def _overview(cases: Sequence[Mapping[str, Any]]) -> str:
    heads = "".join(f"<th>{name} ({unit})" for _, name, unit in METRICS)
    rows = [f"<tr><th>case<th>in<th>out{heads}<th>MTP accepted<th>same tokens"]
    for case in cases:
        name = escape(case["name"])
        cells = "".join(f"<td>{_metric(case, key)}" for key, _, _ in METRICS)
        acceptance = case["summary"]["acceptance"]
        accepted = "–" if acceptance is None else f"{100 * acceptance:.1f} %"
        repeat = "yes" if case["tokens_repeat"] else "<b>no</b>"
        rows.append(
            f"<tr><td><a href='#{name}'>{name}</a><td>{case['prompt_tokens']}"
            f"<td>{case['completion_tokens']}{cells}<td>{accepted}<td>{repeat}"
        )
    return f"<table>{''.join(rows)}</table>"


def _metric(case: Mapping[str, Any], key: str) -> str:
    summary = case["summary"].get(key)
    if summary is None:
        return "–"
    half = (summary["max"] - summary["min"]) / 2
    digits = 1 if summary["median"] >= 10 else 2
    return f"{summary['median']:.{digits}f} ± {half:.{digits}f}"


def _case(case: Mapping[str, Any], prompt: str, output: str, plots: bool) -> str:
    name = escape(case["name"])
    picture = ""
    if plots and case["summary"].get("tpot_ms"):
        picture = f"<p><a href='{name}/tpot.svg'><img src='{name}/tpot.png' alt='TPOT'></a>"
    return (
        f"<h2 id='{name}'>{name}</h2>"
        f"<p>{case['prompt_tokens']} tokens in, {case['completion_tokens']} out, ended by "
        f"{escape(case['finish_reason'])}. <a href='{name}/case.json'>request</a>, "
        f"<a href='{name}/tokens.csv'>tokens</a></p>"
        f"{_stages(case['stages'])}{picture}"
        f"<p>Prompt</p><pre>{escape(prompt)}</pre><p>Output</p><pre>{escape(output)}</pre>"
    )


def _stages(stages: Sequence[Mapping[str, float]]) -> str:
    if not stages:
        return ""
    heads = "".join(f"<th>{title} (ms)" for _, title in STAGES)
    rows = [f"<tr><th>repeat<th>whole request (ms){heads}<th>calls per duck<th>resent packets"]
    for repeat, stage in enumerate(stages, 1):
        cells = "".join(f"<td>{stage[key]:.0f}" for key, _ in STAGES)
        rows.append(
            f"<tr><td>{repeat}<td>{stage['request_ms']:.0f}{cells}"
            f"<td>{stage['calls_per_duck']:.0f}<td>{stage['resent_packets']:.0f}"
        )
    return f"<table>{''.join(rows)}</table>"
