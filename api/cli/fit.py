"""`outrider fit`: whether what somebody describes fits, row by row; or what a host holds of a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, common
from api.cli.output import note, print_json, print_table, say
from orchestrator.errors import NotFound, UsageError

if TYPE_CHECKING:
    from hosts.facts import HostFacts
    from orchestrator.fit import Forecast
    from orchestrator.fit.hosting import Asked, Hosted
    from orchestrator.known_shapes import Known
    from orchestrator.models import ModelEntry

FAILED, REFUSED = 1, 4
_HINT = 'one JSON object a line, such as {"engine": "vllm", "gpu": "RTX 3090", "model": "Qwen/Qwen3-8B"}'


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fit")(fit_)


def fit_(
    ctx: typer.Context,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Say what a host holds of this model, instead of reading rows."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="With --model: this shipped host, not this machine.")
    ] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", metavar="FILE", help="With --model: the host of this file.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, metavar="N", help="With --model: tokens a sequence.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, metavar="N", help="With --model: sequences.")] = 1,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="With --model: how to draft.")] = "none",
    kv: Annotated[str | None, typer.Option("--kv", metavar="TYPE", help="With --model: the KV cache's type.")] = None,
    as_json: Json = False,
) -> None:
    """Say whether models fit, and how much they take, before anything is loaded.

    Reads rows on standard input, JSON lines or a JSON array: engine, model, quant, gpu, gpu_mem_gib, kv_dtype,
    ctx_per_request, parallel, tp, draft, launch; sizes in GiB, what is unknown left out.
    """
    if model is not None:
        from orchestrator.fit.words import drafting

        understood = drafting(method)
        if understood is None:
            raise UsageError(f"--method: {method!r} is none", hint="such as none, mtp, dflash, eagle3, draft, ngram")
        _for_people(ctx, model, _host(profile, facts), _asked(context, parallel, understood.method.value, kv), as_json)
        return
    if profile is not None or facts is not None or context is not None or kv is not None:
        raise UsageError("these options go with --model", hint="`outrider fit --model NAME --profile HOST`")
    answers = list(_answers(_standard_input()))
    if as_json:
        print_json([answer.document for answer in answers])
    else:
        _print_rows(answers)
    if any(answer.forecast is None for answer in answers):
        raise typer.Exit(FAILED)


# ---- rows


@dataclass(frozen=True, slots=True)
class Answer:
    """A row's document; `forecast` None: it could not be read."""

    document: dict[str, Any]
    forecast: Forecast | None


def _standard_input() -> str:
    if sys.stdin.isatty():
        raise UsageError("rows are read from standard input", hint=_HINT)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: {error.reason}", hint=_HINT) from error


def _answers(text: str) -> Iterator[Answer]:
    """A document for each row, in order; what is wrong is said on standard error as well."""
    from orchestrator.fit import RowError, fit, read

    found = 0
    for line, value, problem in _values(text):
        found += 1
        try:
            if problem is not None:
                raise RowError(None, problem)
            forecast = fit(read(value))
        except RowError as error:
            yield _refused(line, value, error)
            continue
        yield Answer(forecast.to_dict(), forecast)
    if not found:
        raise UsageError("there are no rows on standard input", hint=_HINT)


def _refused(line: int, value: object, error: Any) -> Answer:
    where = f"row {line}" if error.key is None else f"row {line}: {error.key}"
    note(f"{where}: {str(error).removeprefix(f'{error.key}: ')}")
    document: dict[str, Any] = {"line": line}
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        document["id"] = value["id"]
    document["error"] = {"code": error.code, "key": error.key, "detail": str(error)}
    return Answer(document, None)


def _values(text: str) -> Iterator[tuple[int, object, str | None]]:
    """(line or position, value, what is wrong): a whole array or object, or one value a line."""
    head = text.lstrip()[:1]
    if head in ("[", "{"):
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            if head == "[":
                raise UsageError(f"standard input is no JSON: {error}", hint=_HINT) from error
        else:
            rows = whole if isinstance(whole, list) else [whole]
            yield from ((number, row, None) for number, row in enumerate(rows, 1))
            return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line), None
        except (ValueError, RecursionError) as error:
            yield number, None, f"is no JSON: {error}"


def _print_rows(answers: Sequence[Answer]) -> None:
    rows = []
    for number, answer in enumerate(answers, 1):
        document = answer.document
        if answer.forecast is None:
            rows.append(
                (str(document.get("id") or number), "-", "-", "error", "-", "-", "-", "-", document["error"]["detail"])
            )
            continue
        figures = [_size(document.get(key)) for key in ("weights_gib", "kv_gib", "total_gib", "available_gib")]
        why = "; ".join(reason["text"] for reason in document["reasons"])
        rows.append(
            (
                str(document.get("id") or number),
                document["model"],
                document["engine"],
                document["verdict"],
                *figures,
                why,
            )
        )
    headings = ("ROW", "MODEL", "ENGINE", "VERDICT", "WEIGHTS", "KV", "TOTAL", "LEFT FOR KV", "WHY")
    print_table(headings, rows, empty="no rows")


def _size(gib: float | None) -> str:
    if gib is None:
        return "-"
    return "none" if gib <= 0 else f"{gib:.2f} GiB"


# ---- for people


def _host(profile: str | None, file: Path | None) -> HostFacts:
    from api.cli.offline import host_facts

    if profile is not None and file is not None:
        raise UsageError("--profile and --facts both name a host", hint="give one of them")
    return host_facts(profile, file)


def _asked(context: int | None, parallel: int, method: str, kv: str | None) -> Asked:
    from orchestrator.fit.hosting import Asked
    from orchestrator.fit.words import kv as understand
    from orchestrator.plan import Method

    understood = None if kv is None else understand(kv)
    if kv is not None and understood is None:
        raise UsageError(f"--kv: {kv!r} is none", hint="such as f16, q8_0, fp8")
    return Asked(context, parallel, Method(method), kv=None if understood is None else understood.keys)


def _for_people(ctx: typer.Context, name: str, host: HostFacts, asked: Asked, as_json: bool) -> None:
    from orchestrator.fit import hosting
    from orchestrator.known_shapes import find

    entry = _entry(ctx, name)
    known = None if entry is not None else find(name)
    if entry is None and known is None:
        raise NotFound(f"no model is known by {name!r}", hint="`outrider catalog list`, or a public name: Qwen3-8B")
    weights = hosting.weights_of(entry, known, asked.method)
    held = hosting.hold(weights, host, asked)
    gpu, backend = hosting.device_of(host)
    document = {
        "model": _named(entry, known),
        "host": host.host,
        "device": "cpu" if gpu is None else gpu.name,
        "backend": backend.value,
        "budget_gib": round(hosting.budget_of(host) / (1 << 30), 3),
        "answers": [one.to_dict() for one in held],
    }
    if as_json:
        print_json(document)
    else:
        _print_held(document, held)
    if not any(one.fits for one in held):
        raise typer.Exit(REFUSED)


def _entry(ctx: typer.Context, name: str) -> ModelEntry | None:
    from orchestrator.catalogue import shipped
    from orchestrator.config import load

    config = load(common(ctx).paths)
    try:
        return config.laid_over(shipped()).find(name)
    except NotFound:
        return None


def _named(entry: ModelEntry | None, known: Known | None) -> str | None:
    return entry.name if entry is not None else known.name if known is not None else None


def _print_held(document: dict[str, Any], held: Sequence[Hosted]) -> None:
    say(f"{document['model']} on {document['host']}: {document['device']}, {_size(document['budget_gib'])} to take")
    rows = [
        (
            one.weights.name,
            one.runtime.value,
            _size(one.held.expected.weights / (1 << 30)),
            _size(one.held.expected.total / (1 << 30)),
            "yes" if one.fits else "no",
            "-" if one.held.context is None else f"{one.held.context} tokens",
            "-" if one.held.parallel is None else f"{one.held.parallel} x {one.demand.context}",
            _give_up(one),
        )
        for one in held
    ]
    headings = ("VARIANT", "RUNTIME", "WEIGHTS", "TOTAL", "FITS", "LONGEST", "MOST AT ONCE", "WHY")
    unsized = f"the sizes of its weights are not known; `outrider plan {document['model']}` reads its files"
    print_table(headings, rows, empty=unsized)


def _give_up(one: Hosted) -> str:
    if one.fits:
        return ""
    steps = one.held.concessions
    if not steps or not steps[-1].enough:
        return "nothing that could be given up makes it fit"
    return "give up: " + ", then ".join(f"{c.what} {c.before} -> {c.after}" for c in steps)
