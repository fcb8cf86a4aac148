"""Whether what somebody describes fits: rows of an exchange format in, forecasts and verdicts out.

`rows.py` reads a row and refuses what cannot be meant; `words.py` understands what people write for types and
methods; `naming.py`, `facts.py` and `quantisation.py` make shapes and bytes of a model's text; `devices.py` and
`budget.py` say what a device and an engine's defaults leave; `demanding.py` puts it into a `memory_fit.Demand`;
`engines.py`, `printed.py` and `forecast.py` say what it takes, `verdict.py` whether it fits. All bytes are
`memory_fit`'s: there is no second formula here. Pure.
"""

from orchestrator.fit.forecast import Forecast, fit
from orchestrator.fit.rows import Row, RowError, read

__all__ = ["Forecast", "Row", "RowError", "fit", "read"]
