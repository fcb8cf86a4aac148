"""What the gateway reads of a request's body: which model, and whether the answer is to be a stream."""

from __future__ import annotations

import json
from typing import NoReturn

from api.gateway import problem
from api.gateway.problem import Problem


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


MOST_ITEMS = 2_000_000
"""Lists, objects and items of a body, as far as counting commas and brackets tells.

Reading 22 MiB of empty lists takes 1.2 s and 700 MiB; no prompt is made of that many parts.
"""
_COUNTED_FROM = 1024 * 1024
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder(parse_constant=_not_json)


def read(body: bytes) -> tuple[str, bool] | Problem:
    """(model, stream) of a request body, or what is wrong with it."""
    if len(body) > _COUNTED_FROM and sum(map(body.count, (b",", b"[", b"{"))) > MOST_ITEMS:
        return problem.too_intricate(MOST_ITEMS)
    try:
        text = body.decode().strip(_BLANK)
        document, end = _DECODER.raw_decode(text)  # `decode` would look for blanks with regular expressions
        if end != len(text):
            return problem.invalid_json(f"it goes on after its end, at character {end}")
    except (ValueError, RecursionError) as error:
        return problem.invalid_json(str(error)[:200])
    if not isinstance(document, dict):
        return problem.invalid_json("it has to be an object")
    model = document.get("model")
    if model is None or model == "":
        return problem.no_model()
    if not isinstance(model, str):
        return problem.model_not_text()
    return model, document.get("stream") is True
